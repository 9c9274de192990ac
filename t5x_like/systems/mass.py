"""MASS: Song et al. 2019, "MASS: Masked Sequence to Sequence ..." (arXiv:1905.02450)."""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

import flax.linen as nn

from t5x_like.hf.config_settings import COUNT, Setting, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.losses import autoregressive
from t5x_like.nn.embeddings import TiedHead
from t5x_like.nn.linear import LayerNorm
from t5x_like.nn.networks import EncoderDecoder
from t5x_like.systems import bart
from t5x_like.systems.system import System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MassConfig(bart.Seq2SeqConfig):
    """The settings of a MASS."""

    vocab_size: int = 60_000
    positions: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    d_model: int = 1024
    d_ff: int = 4096
    heads: int = 8
    norm_epsilon: float = 1e-12


# Section 4.1: 6 layers of width 1024 on each side, feed-forward layers of width 4096. The 8 heads,
# 512 positions, epsilon and vocabulary of 60,000 pieces are from the released code.
SIZES: dict[str, MassConfig] = {"big": MassConfig()}

loss = autoregressive.loss


def build(config: MassConfig) -> nn.Module:
    """Build the network of a config with the keys of SIZES, with BART's layers.

    The decoder's inputs keep their positions in the sentence (section 3.1), which the batch has as
    `decoder_positions`.
    """
    make_norm = functools.partial(LayerNorm, epsilon=config.norm_epsilon)
    tower = functools.partial(bart.tower, config, make_norm=make_norm, reserved=0)
    return EncoderDecoder(
        make_embedding=bart.embedding(config),
        make_encoder=tower(layers=config.encoder_layers),
        make_decoder=tower(layers=config.decoder_layers, cross_attention=True),
        make_head=functools.partial(TiedHead, use_bias=True),
    )


SYSTEM = System(
    name="mass",
    sizes=SIZES,
    build=build,
    older_defaults={"dropout_broadcast": True, "norm_epsilon": 1e-12},
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)


# MASS in Hugging Face's folders, where it is a BART.
# With BART's layer norm epsilon, a MASS computes the same as a BART: set `model.norm_epsilon=1e-5`
# before training. BART's folders are read as the system `bart` unless `mass` is requested.


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    del settings, names
    for name in ("ffn_dim", "attention_heads"):
        one_of(config[f"encoder_{name}"]).check(f"decoder_{name}", config[f"decoder_{name}"])
    return {"norm_epsilon": 1e-5}


# BART's tables begin with two rows that it does not use.
_POSITIONS = {
    f"{tower}/entrance/position/embedding": (
        f"model.{tower}.embed_positions.weight",
        "2+P D -> P D",
    )
    for tower in ("encoder", "decoder")
}

HUGGING_FACE = HuggingFaceFormat(
    system="mass",
    model_types={"bart": "Bart"},
    on_request=True,
    class_suffix="ForConditionalGeneration",
    defaults=SIZES["big"],
    settings={
        **{
            k: setting
            for k, setting in bart.HUGGING_FACE.settings.items()
            if setting.name in SIZES["big"]
        },
        "decoder_ffn_dim": Setting("d_ff", COUNT),
        "decoder_attention_heads": Setting("heads", COUNT),
    },
    other_names=bart.HUGGING_FACE.other_names,
    fixed=bart.HUGGING_FACE.fixed,
    multiples=bart.HUGGING_FACE.multiples,
    derive_settings=_derive_settings,
    exported_only={"norm_epsilon": 1e-5},
    weights={**bart.HUGGING_FACE.weights, **_POSITIONS},
    aliases=bart.HUGGING_FACE.aliases,
    unused=bart.HUGGING_FACE.unused,
)
