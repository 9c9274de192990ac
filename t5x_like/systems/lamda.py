"""LaMDA: Thoppilan et al. 2022, "LaMDA: Language Models for Dialog Applications", its network."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from t5x_like.systems import t5
from t5x_like.systems.system import System, Task


def _size(layers: int, d_model: int, heads: int) -> dict[str, Any]:
    return {
        "vocab_size": 32_000,
        "layers": layers,
        "d_model": d_model,
        "d_ff": 8 * d_model,
        "heads": heads,
        "head_width": 128,
        "dropout": 0.0,
        "dropout_broadcast": True,
        "attention": "auto",
        "dtype": "float32",
        "loop": "auto",
        "remat": "none",
        "embedding_lookup": "gather",
    }


# Table 27; the paper has d_ff and the head width of the largest alone (section 3).
SIZES: dict[str, dict[str, Any]] = {
    "2b": _size(10, 2560, 40),
    "8b": _size(16, 4096, 64),
    "137b": _size(64, 8192, 128),
}

loss = t5.loss


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES (section 3).

    It is decoder-only, with T5's relative position bias and gated GELU. Where the paper has no
    details it is T5, too: RMSNorm before each sublayer, no biases, and T5's initialization.
    """
    t5_config = {
        "architecture": "decoder",
        "encoder_layers": 0,
        "decoder_layers": config["layers"],
        "d_kv": config["head_width"],
        "feed_forward": "gated_gelu",
        "tied_head": True,
        "scale_tied_logits": True,
        "relative_buckets": 32,
        "relative_max_distance": 128,
        "d_adapter": 0,
        "quantization": "none",
    }
    return t5.build({**config, **t5_config})


SYSTEM = System(
    name="lamda",
    sizes=SIZES,
    build=build,
    later={"dropout_broadcast": True},
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)
