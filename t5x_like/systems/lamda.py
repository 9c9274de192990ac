"""LaMDA: Thoppilan et al. 2022, "LaMDA: Language Models for Dialog Applications"; pretraining."""

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
        "loop": "scan",
        "remat": "none",
        "embedding_lookup": "gather",
    }


# Table 27; d_ff and the heads' width are told of the largest alone (section 3).
SIZES: dict[str, dict[str, Any]] = {
    "2b": _size(10, 2560, 40),
    "8b": _size(16, 4096, 64),
    "137b": _size(64, 8192, 128),
}

loss = t5.loss


def build(config: Mapping[str, Any]) -> nn.Module:
    """The network of a config with the keys of SIZES (section 3).

    Decoder-only, with T5's position bias and gated GELU; all else that the paper does not tell is
    T5's too: RMSNorm before each sublayer, no biases, and how the parameters are drawn.
    """
    of_t5 = {
        "architecture": "decoder",
        "encoder_layers": 0,
        "decoder_layers": config["layers"],
        "d_kv": config["head_width"],
        "feed_forward": "gated_gelu",
        "tied_head": True,
        "scale_tied_logits": True,
    }
    return t5.build({**config, **of_t5})


SYSTEM = System(
    name="lamda",
    sizes=SIZES,
    build=build,
    later={"dropout_broadcast": True},
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)
