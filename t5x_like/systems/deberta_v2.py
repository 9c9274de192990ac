"""DeBERTa, versions 2 and 3: He et al. 2021, "DeBERTaV3: ..." (arXiv:2111.09543)."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from t5x_like import losses
from t5x_like.systems import deberta
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task


def _size(layers: int, d_model: int, heads: int) -> dict[str, Any]:
    changes = {
        "vocab_size": 128_100,
        "layers": layers,
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "heads": heads,
        "relative_buckets": 256,
        "relative_norm": True,
        "share_projections": True,
        "key_bias": True,
        "convolution": 0,
        "convolution_activation": "tanh",
    }
    return deberta.SIZES["base"] | changes


SIZES: dict[str, dict[str, Any]] = {
    "v3_small": _size(6, 768, 12),
    "v3_base": _size(12, 768, 12),
    "v3_large": _size(24, 1024, 16),
}


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: as in systems/deberta.py, and more. With `relative_buckets` above 0 distances are on
            a logarithmic scale of that many buckets each way up to `relative_span`;
            `relative_norm` norms the table of relative positions; `share_projections` makes its
            keys and queries by the kernels of the tokens; `key_bias` adds a bias to the keys;
            `convolution` is the width of the convolution beside the first layer, 0 for none.

    Raises:
        ValueError: no such head, terms or activation, or a convolution of even width.
    """
    if config["convolution"] and config["convolution"] % 2 == 0:
        raise ValueError(
            f"model.convolution={config['convolution']}: choose an odd width, or 0 for none"
        )
    return deberta.network(config)


SYSTEM = System(
    name="deberta_v2",
    sizes=SIZES,
    build=build,
    tasks={
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
    new_parameters=deberta.SYSTEM.new_parameters,
)
