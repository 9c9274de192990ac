"""umT5 in Hugging Face's folders: T5's tensors, but with a relative position bias in each layer."""

import dataclasses
from collections.abc import Collection
from typing import Any

from t5x_like.hf.config_settings import Setting, one_of
from t5x_like.hf.record import Settings
from t5x_like.hf.systems import t5
from t5x_like.hf.weight_map import WeightMap
from t5x_like.systems.umt5 import SIZES


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    found = t5.derive_settings({"feed_forward_proj": "gated-gelu", **config}, settings, names)
    # The class scales the logits if the output layer is tied. In transformers 5 it scales them for
    # every folder, though the released models, which are not tied, were trained without a scale.
    scaled = config.get("tie_word_embeddings") is not False or "lm_head.weight" not in names
    return {**found, "tied_head": scaled, "scale_tied_logits": True}


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
    weights: dict[str, Any] = dict(t5.FORMAT.weights)
    for tower in ("encoder", "decoder"):
        first = weights.pop(f"{tower}/relative_position_bias/embedding")
        ours = f"{tower}/layers/{{layer}}/self_attention/relative_position_bias/embedding"
        weights[ours] = first.replace(".block.0.", ".block.{layer}.")
    return weights


FORMAT = dataclasses.replace(
    t5.FORMAT,
    system="umt5",
    model_types={"umt5": "UMT5"},
    defaults=SIZES["small"],
    settings={
        **{k: v for k, v in t5.FORMAT.settings.items() if k != "scale_decoder_outputs"},
        "feed_forward_proj": Setting("", one_of("relu", "gated-gelu"), default="gated-gelu"),
    },
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights=_weights(),
    unused=(),
)
