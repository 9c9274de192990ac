"""umT5: Chung et al. 2023, "UniMax: Fairer and More Effective Language Sampling ..." (ICLR 2023).

T5 v1.1 with a vocabulary of 256,000 pieces, and a separate relative position bias in each layer.
"""

import dataclasses
from collections.abc import Collection
from typing import Any

import flax.linen as nn

from t5x_like.hf.config_settings import Setting, one_of
from t5x_like.hf.record import Settings
from t5x_like.hf.weight_map import WeightMap
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
    older_defaults={"quantization": "none"},
    adapt=t5.SYSTEM.adapt,
    tasks={"": Task(loss=autoregressive.loss, prediction="text")},
)


# umT5 in Hugging Face's folders: T5's tensors, but with a relative position bias in each layer.


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    derived = t5.derive_settings({"feed_forward_proj": "gated-gelu", **config}, settings, names)
    # The class scales the logits if the output layer is tied. In transformers 5 it scales them for
    # every folder, though the released models, which are not tied, were trained without a scale.
    scaled = config.get("tie_word_embeddings") is not False or "lm_head.weight" not in names
    return {**derived, "tied_head": scaled, "scale_tied_logits": True}


def _derive_config(settings: Settings) -> dict[str, Any]:
    config = t5.derive_config(settings)
    if settings["tied_head"] and not settings["scale_tied_logits"]:
        raise ValueError(
            "model.scale_tied_logits=False: Hugging Face's umT5 scales the logits of a tied output "
            "layer"
        )
    del config["scale_decoder_outputs"]
    return config


def _weights() -> WeightMap:
    """Return T5's weight map, with a position bias in every layer rather than only in the first."""
    weights: dict[str, Any] = dict(t5.HUGGING_FACE.weights)
    for tower in ("encoder", "decoder"):
        first = weights.pop(f"{tower}/relative_position_bias/embedding")
        ours = f"{tower}/layers/{{layer}}/self_attention/relative_position_bias/embedding"
        weights[ours] = first.replace(".block.0.", ".block.{layer}.")
    return weights


HUGGING_FACE = dataclasses.replace(
    t5.HUGGING_FACE,
    system="umt5",
    model_types={"umt5": "UMT5"},
    defaults=SIZES["small"],
    settings={
        **{k: v for k, v in t5.HUGGING_FACE.settings.items() if k != "scale_decoder_outputs"},
        "feed_forward_proj": Setting("", one_of("relu", "gated-gelu"), default="gated-gelu"),
    },
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights=_weights(),
    unused=(),
)
