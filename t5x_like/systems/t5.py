"""T5: Raffel et al. 2020, "Exploring the Limits of Transfer Learning" (arXiv:1910.10683).

v1.0 is the paper's model: ReLU, and the embeddings serve as the output layer. v1.1 (Google's
release of 2020, after Shazeer 2020) has gated GELU and an output layer of its own. The paper's
other architectures (section 3.2) are the same parts put together otherwise.
"""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from t5x_like.models.attention import Attention, select_core
from t5x_like.models.blocks import PreNormBlock
from t5x_like.models.embeddings import LinearHead, TiedHead, TokenEmbed
from t5x_like.models.feed_forward import GLU, MLP
from t5x_like.models.norms import RMSNorm
from t5x_like.models.positions import RelativePositionBias
from t5x_like.models.stack import Stack
from t5x_like.models.transformer import Decoder, EncoderDecoder, Tower
from t5x_like.training import losses

_COMMON: dict[str, Any] = {
    "architecture": "encoder_decoder",
    "vocab_size": 32128,
    "dropout": 0.1,
    "attention": "auto",
    "dtype": "float32",
    "loop": "scan",
    "remat": "none",
    "embedding_lookup": "gather",
}


def _size(layers: int, d_model: int, d_ff: int, heads: int, d_kv: int, **kind: Any) -> dict:
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "d_model": d_model}
    return _COMMON | sizes | {"d_ff": d_ff, "heads": heads, "d_kv": d_kv} | kind


_V1_0 = {"feed_forward": "relu", "tied_head": True}
_V1_1 = {"feed_forward": "gated_gelu", "tied_head": False, "dropout": 0.0}

# v1.0: the paper's section 3.7. v1.1 was pretrained without dropout; fine-tune with 0.1.
SIZES: dict[str, dict[str, Any]] = {
    "v1_0_small": _size(6, 512, 2048, 8, 64, **_V1_0),
    "v1_0_base": _size(12, 768, 3072, 12, 64, **_V1_0),
    "v1_0_large": _size(24, 1024, 4096, 16, 64, **_V1_0),
    "v1_0_3b": _size(24, 1024, 16384, 32, 128, **_V1_0),
    "v1_0_11b": _size(24, 1024, 65536, 128, 128, **_V1_0),
    "small": _size(8, 512, 1024, 6, 64, **_V1_1),
    "base": _size(12, 768, 2048, 12, 64, **_V1_1),
    "large": _size(24, 1024, 2816, 16, 64, **_V1_1),
    "xl": _size(24, 2048, 5120, 32, 64, **_V1_1),
    "xxl": _size(24, 4096, 10240, 64, 64, **_V1_1),
}


def build(config: Mapping[str, Any]) -> nn.Module:
    """The network of a config with the keys of SIZES.

    `architecture` is `encoder_decoder`, `shared_encoder_decoder` (one set of parameters),
    `decoder` (a language model) or `prefix_decoder` (a prefix LM), as in section 3.2.
    """
    normal, d_model = nn.initializers.normal, config["d_model"]
    dtype = jnp.dtype(config["dtype"])
    # The scores are not divided by sqrt(K); the query's initial size makes up for it.
    attention = functools.partial(
        Attention,
        heads=config["heads"],
        width=config["d_kv"],
        scale=1.0,
        core=select_core(config["attention"], dtype=dtype, dropout=config["dropout"]),
        query_init=normal((d_model * config["d_kv"]) ** -0.5),
        kernel_init=normal(d_model**-0.5),
        out_init=normal((config["heads"] * config["d_kv"]) ** -0.5),
        dropout=config["dropout"],
        dtype=dtype,
    )
    feed_forward = functools.partial(
        {"relu": MLP, "gated_gelu": GLU}[config["feed_forward"]],
        hidden=config["d_ff"],
        wi_init=normal(d_model**-0.5),
        wo_init=normal(config["d_ff"] ** -0.5),
        dropout=config["dropout"],
        dtype=dtype,
    )
    block = functools.partial(
        PreNormBlock,
        make_norm=functools.partial(RMSNorm, dtype=dtype),
        make_self_attention=attention,
        make_feed_forward=feed_forward,
        dropout=config["dropout"],
    )
    reading_block = functools.partial(block, make_cross_attention=attention)
    return _assemble(config, block=block, reading_block=reading_block, dtype=dtype)


def _assemble(
    config: Mapping[str, Any], *, block: Any, reading_block: Any, dtype: Any
) -> nn.Module:
    normal, d_model = nn.initializers.normal, config["d_model"]

    def tower(layer: Any, layers: int) -> Any:
        return functools.partial(
            Tower,
            make_stack=functools.partial(
                Stack, make_block=layer, layers=layers, loop=config["loop"], remat=config["remat"]
            ),
            make_norm=functools.partial(RMSNorm, dtype=dtype),
            make_bias=functools.partial(
                RelativePositionBias,
                heads=config["heads"],
                embedding_init=normal(d_model**-0.5),
                dtype=dtype,
            ),
            dropout=config["dropout"],
        )

    ends = {
        "make_embedding": functools.partial(
            TokenEmbed,
            vocab_size=config["vocab_size"],
            features=d_model,
            lookup=config["embedding_lookup"],
            dtype=dtype,
        ),
        "make_head": functools.partial(TiedHead, scale=d_model**-0.5)
        if config["tied_head"]
        else functools.partial(LinearHead, kernel_init=normal(d_model**-0.5)),
    }
    encoder_layers, decoder_layers = config["encoder_layers"], config["decoder_layers"]
    match config["architecture"]:
        case "encoder_decoder":
            encoding = tower(block, encoder_layers)
            decoding = tower(reading_block, decoder_layers)
            return EncoderDecoder(make_encoder=encoding, make_decoder=decoding, **ends)
        case "shared_encoder_decoder":
            return EncoderDecoder(make_encoder=tower(reading_block, encoder_layers), **ends)
        case "decoder":
            return Decoder(make_decoder=tower(block, decoder_layers), **ends)
        case "prefix_decoder":
            return Decoder(make_decoder=tower(block, decoder_layers), visibility="prefix", **ends)
    raise ValueError(f"model.architecture={config['architecture']!r} is not an architecture of T5")


def loss(
    module: nn.Module,
    params: Any,
    batch: Mapping[str, jax.Array],
    rng: jax.Array | None,
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
    """Cross-entropy of the targets: its sum, the sum of the weights, and metrics.

    Args:
        rng: key of dropout; None in evaluation.
    """
    logits = module.apply(
        {"params": params},
        batch,
        deterministic=rng is None,
        rngs=None if rng is None else {"dropout": rng},
    )
    return losses.cross_entropy(
        logits,
        batch["decoder_target_tokens"],
        batch["decoder_loss_weights"],
        z_loss=z_loss,
        label_smoothing=label_smoothing,
    )
