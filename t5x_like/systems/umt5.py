"""umT5: Chung et al. 2023, "UniMax: Fairer and More Effective Language Sampling ..." (ICLR 2023).

T5 v1.1 with a vocabulary of 256,000 pieces, and a separate relative position bias in each layer.
"""

import dataclasses

import flax.linen as nn

from t5x_like.losses import autoregressive
from t5x_like.systems import t5
from t5x_like.systems.system import System, Task

# The released models: their embedding tables have 256,384 rows; widths and depths are T5 v1.1's.
SIZES: dict[str, t5.T5Config] = {
    name: dataclasses.replace(t5.SIZES[name], vocab_size=256_384)
    for name in ("small", "base", "xl", "xxl")
}


def build(config: t5.T5Config) -> nn.Module:
    """Build the network of a config with the keys of SIZES; for the settings see `t5.build`.

    Raises:
        ValueError: the architecture or feed-forward is unknown.
    """
    return t5.network(config, make_feed_forwards=(t5.feed_forward(config),), bias_in_layers=True)


SYSTEM = System(
    name="umt5",
    sizes=SIZES,
    build=build,
    later={"quantization": "none"},
    adapt=t5.SYSTEM.adapt,
    tasks={"": Task(loss=autoregressive.loss, prediction="text")},
)
