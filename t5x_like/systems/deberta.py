"""DeBERTa: He et al. 2020, "DeBERTa: Decoding-enhanced BERT with ..." (arXiv:2006.03654)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from t5x_like import losses
from t5x_like.models.attention.disentangled import (
    DisentangledAttention,
    RelativeTable,
    relative_rows,
)
from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.attention.selection import select_core
from t5x_like.models.blocks.mask_decoder import MaskDecoderBlock, MaskDecoderStack, Neighbors
from t5x_like.models.blocks.stack import Stack
from t5x_like.models.embeddings.encoder_embeddings import ContentEmbeddings
from t5x_like.models.embeddings.positions import LearnedPositions
from t5x_like.models.embeddings.token_embeddings import TokenEmbed
from t5x_like.models.heads.encoder_heads import Features, MaskedLMHead, Pooler, select_head
from t5x_like.models.networks.encoder import Encoder
from t5x_like.models.networks.tower import Tower
from t5x_like.models.norms import LayerNorm
from t5x_like.models.types import Batch
from t5x_like.names import choose
from t5x_like.systems import bert
from t5x_like.systems.encoder_tasks import ENCODER_TASKS
from t5x_like.systems.system import System, Task


def _size(layers: int, d_model: int, heads: int) -> dict[str, Any]:
    return {
        "head": "masked_lm",
        "labels": 2,
        "vocab_size": 50265,
        "positions": 512,
        "relative_span": 512,
        "terms": "c2p|p2c",
        "mask_decoder": True,
        "layers": layers,
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "heads": heads,
        "dropout": 0.1,
        "dropout_broadcast": False,
        "attention": "auto",
        "dtype": "float32",
        "loop": "auto",
        "remat": "none",
        "embedding_lookup": "gather",
    }


SIZES: dict[str, dict[str, Any]] = {"base": _size(12, 768, 12), "large": _size(24, 1024, 16)}

# What versions 2 and 3 of the released code can change: see systems/deberta_v2.py.
VERSION_1 = {
    "relative_buckets": 0,
    "relative_norm": False,
    "share_projections": False,
    "key_bias": False,
    "convolution": 0,
    "convolution_activation": "tanh",
}

TERMS: dict[str, tuple[str, ...]] = {  # of the scores, besides content to content (table 4)
    "c2p|p2c": ("c2p", "p2c"),
    "c2p": ("c2p",),
    "p2c": ("p2c",),
    "none": (),
}
ACTIVATIONS = {"gelu": bert.GELU, "tanh": nn.tanh}
NORM = functools.partial(LayerNorm, epsilon=1e-7)


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: its `head` is "masked_lm" or one of `select_head`; `terms` one of TERMS, the terms
            of the attention scores; `mask_decoder` decodes the masked tokens of the head
            "masked_lm" by the enhanced mask decoder (section 3.2); `relative_span` is k.

    Raises:
        ValueError: no such head or terms.
    """
    return network({**VERSION_1, **config})


def network(
    config: Mapping[str, Any], heads: Mapping[str, Callable[..., nn.Module]] | None = None
) -> "DisentangledEncoder":
    """Build the network of any version: with the keys of SIZES, and those of deberta_v2.SIZES.

    Args:
        heads: factories of further heads.

    Raises:
        ValueError: no such head, terms or activation.
    """
    dtype = jnp.dtype(config["dtype"])
    make_pooler = functools.partial(
        Pooler, activation=bert.GELU, kernel_init=bert.INIT, dtype=dtype
    )
    make_masked_lm = bert.masked_lm(config, make_norm=NORM)
    own: dict[str, Callable[..., nn.Module]] = {
        "masked_lm": functools.partial(MaskedLMHead, make_masked_lm=make_masked_lm),
        "features": Features,
        **(heads or {}),
    }
    return DisentangledEncoder(
        make_embeddings=embeddings(config, ContentEmbeddings),
        make_encoder=tower(config),
        make_head=select_head(config, own, make_pooler=make_pooler, kernel_init=bert.INIT),
    )


def embeddings(
    config: Mapping[str, Any], kind: Callable[..., nn.Module]
) -> Callable[..., nn.Module]:
    """The token embeddings, without positions."""
    dtype = jnp.dtype(config["dtype"])
    return functools.partial(
        kind,
        make_tokens=functools.partial(
            TokenEmbed,
            vocab_size=config["vocab_size"],
            features=config["d_model"],
            lookup=config["embedding_lookup"],
            embedding_init=bert.INIT,
            dtype=dtype,
        ),
        make_norm=functools.partial(NORM, dtype=dtype),
    )


class DisentangledEncoder(Encoder):
    """An `Encoder` whose padding attends to no text, as in the released code."""

    def mask(self, batch: Batch) -> AttentionMask:
        """The attention mask: all tokens of a document attend to each other."""
        segments = batch["encoder_segment_ids"]
        return AttentionMask(query_segments=segments, key_segments=segments)


def tower(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    """The layers, with the table of relative positions that they share."""
    dtype = jnp.dtype(config["dtype"])
    decodes = config["mask_decoder"] and config["head"] == "masked_lm"
    make_stack = functools.partial(
        MaskDecoderStack,
        make_stack=functools.partial(
            Stack,
            make_block=block(config),
            layers=config["layers"],
            loop=config["loop"],
            remat=config["remat"],
        ),
        make_positions=functools.partial(
            LearnedPositions,
            length=config["positions"],
            features=config["d_model"],
            embedding_init=bert.INIT,
            dtype=dtype,
        )
        if decodes
        else None,
        make_neighbors=_neighbors(config) if config["convolution"] else None,
    )
    return functools.partial(
        Tower,
        make_stack=make_stack,
        make_extra=_relative_table(config) if _terms(config) else None,
        dropout=config["dropout"],
        dropout_broadcast=config["dropout_broadcast"],
    )


def _neighbors(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    """The convolution beside the first layer."""
    dtype = jnp.dtype(config["dtype"])
    return functools.partial(
        Neighbors,
        width=config["convolution"],
        make_norm=functools.partial(NORM, dtype=dtype),
        activation=choose(
            "model.convolution_activation", config["convolution_activation"], ACTIVATIONS
        ),
        kernel_init=bert.INIT,
        dropout=config["dropout"],
        dtype=dtype,
    )


def _relative_table(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    """The table of relative positions, which all layers share."""
    dtype = jnp.dtype(config["dtype"])
    return functools.partial(
        RelativeTable,
        rows=2 * (config["relative_buckets"] or config["relative_span"]),
        features=config["d_model"],
        embedding_init=bert.INIT,
        make_norm=functools.partial(NORM, dtype=dtype) if config["relative_norm"] else None,
        dropout=config["dropout"],
        dtype=dtype,
    )


def _terms(config: Mapping[str, Any]) -> tuple[str, ...]:
    return choose("model.terms", config["terms"], TERMS)


def block(config: Mapping[str, Any]) -> Callable[..., nn.Module]:
    """BERT's layer with disentangled attention (section 3.1)."""
    dtype = jnp.dtype(config["dtype"])
    terms = _terms(config)
    width = config["d_model"] // config["heads"]
    keyed = ("key", "position_key") if config["key_bias"] else ()
    return functools.partial(
        MaskDecoderBlock,
        make_norm=functools.partial(NORM, dtype=dtype),
        make_self_attention=functools.partial(
            DisentangledAttention,
            heads=config["heads"],
            width=width,
            core=select_core(config["attention"]),
            scale=(width * (1 + len(terms))) ** -0.5,
            terms=terms,
            make_rows=functools.partial(
                relative_rows, span=config["relative_span"], buckets=config["relative_buckets"]
            ),
            share_projections=config["share_projections"],
            dropout=config["dropout"],
            dropout_broadcast=config["dropout_broadcast"],
            use_bias=("query", "value", "out", "position_query", *keyed),
            query_init=bert.INIT,
            kernel_init=bert.INIT,
            out_init=bert.INIT,
            dtype=dtype,
        ),
        make_feed_forward=bert.feed_forward(config),
        dropout=config["dropout"],
        dropout_broadcast=config["dropout_broadcast"],
    )


SYSTEM = System(
    name="deberta",
    sizes=SIZES,
    build=build,
    tasks={
        "masked_lm": Task(loss=losses.masked_lm.loss, prediction="masked_tokens"),
        **ENCODER_TASKS,
    },
    # The mask decoder's positions, which published folders lack.
    new_parameters=("encoder/layers/position/",),
)
