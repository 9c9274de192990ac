"""LongT5: Guo et al. 2021, "LongT5: Efficient Text-To-Text Transformer for Long Sequences".

T5 v1.1 whose encoder attends to near tokens (arXiv:2112.07916, section 3.1.1), and in its
transient-global variant also to sums of blocks of tokens (section 3.1.2).
"""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like.hf.config_settings import COUNT, Setting, integers, one_of
from t5x_like.hf.record import HuggingFaceFormat, Settings
from t5x_like.hf.weight_map import WeightMap
from t5x_like.losses import autoregressive
from t5x_like.names import choose
from t5x_like.nn.attention.block_sparse import (
    distances,
    into_blocks,
    neighbors_exist,
    with_neighbors,
)
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import dense_core
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask, ComputedMask, RelativeBias
from t5x_like.nn.blocks import Shared
from t5x_like.nn.linear import RMSNorm
from t5x_like.systems import t5
from t5x_like.systems.system import System, Task, adaptation

ARCHITECTURES = ("encoder_decoder", "encoder")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LongT5Config(t5.T5Config):
    """The settings of a LongT5, see `build`."""

    encoder_attention: str
    local_radius: int = 127
    global_block: int = 16


def _size(name: str, encoder_attention: str) -> LongT5Config:
    return t5.SIZES[name].to(LongT5Config, encoder_attention=encoder_attention)


# The released models; their widths and depths are T5 v1.1's (section 4.1).
SIZES: dict[str, LongT5Config] = {
    "local_base": _size("base", "local"),
    "local_large": _size("large", "local"),
    "tglobal_base": _size("base", "transient_global"),
    "tglobal_large": _size("large", "transient_global"),
    "tglobal_xl": _size("xl", "transient_global"),
}


# ---- LongT5's attention: tokens attend to near tokens, and to sums of blocks of tokens.


@flax.struct.dataclass
class Globals:
    """The G global tokens of each row, each the sum of a block of tokens.

    Attributes:
        of_tokens: the global token that each token belongs to, counted from 0; -1 for none.
        segments: the document of each global token, 0 if the global token is not used.
        bias: the bias of the scores: at [i, h, j] of head h, for queries that belong to global
            token i and the key of global token j.
        keys_values: the keys and values of the global tokens in a layer; None outside the layers.
    """

    of_tokens: Int[Array, "B T"]
    segments: Int[Array, "B G"]
    bias: Float[Array, "G H G"]
    keys_values: KeyValues | None = None

    def sums(self, x: Float[Array, "B T D"]) -> Float[Array, "B G D"]:
        """Return the sum of the tokens that belong to each global token."""
        membership = jax.nn.one_hot(self.of_tokens, self.segments.shape[1], dtype=x.dtype)
        return jnp.einsum("BTD,BTG->BGD", x, membership)


class GlobalTokens(nn.Module):
    """The blocks of tokens that global tokens sum, and the bias of their scores, for all layers.

    Guo et al. 2021, section 3.1.2. The first block of k tokens begins at the document's beginning.
    The last tokens of a document, if too few for a block, belong to the block before them, if there
    is one (as in flaxformer).

    Attributes:
        block: k.
        make_bias: factory of a `RelativePositionBias`, for distances between global tokens.
    """

    block: int
    make_bias: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, shared: Shared) -> Globals:
        """Return the global tokens of each row; the mask's key segments are the documents."""
        segments = shared.mask.key_segments
        assert segments is not None  # encoders have them
        # At least one, which no token belongs to in rows shorter than a block.
        count = max(segments.shape[1] // self.block, 1)
        of_tokens = _blocks_of(segments, self.block)
        membership = of_tokens[:, :, None] == jnp.arange(count)
        bias = self.make_bias(name="relative_position_bias")(
            queries=count, keys=count, offset=0, bidirectional=True
        )
        return Globals(
            of_tokens=of_tokens,
            segments=jnp.max(jnp.where(membership, segments[:, :, None], 0), axis=1),
            bias=jnp.moveaxis(bias[0], 0, 1),
        )


def _blocks_of(segments: Int[Array, "B T"], block: int) -> Int[Array, "B T"]:
    """Return the number of each token's block, counted from 0 in each row; -1 for none."""
    length = segments.shape[1]
    slots = jnp.arange(length)
    begins = jnp.pad(segments[:, 1:] != segments[:, :-1], [(0, 0), (1, 0)], constant_values=True)
    position = slots - jax.lax.cummax(jnp.where(begins, slots, 0), axis=1)
    end = slots + block - 1 - position % block
    at_end = jnp.take_along_axis(segments, jnp.minimum(end, length - 1), axis=1)
    is_full = (segments > 0) & (end < length) & (at_end == segments)
    is_end = is_full & (end == slots)
    before = jnp.cumsum(is_end, axis=1) - is_end
    orphans = jnp.where((segments > 0) & (position >= block), before - 1, -1)
    return jnp.where(is_full, before, orphans)


class LocalAttention(Attention):
    """Self-attention to the tokens less than W slots away (Guo et al. 2021, section 3.1.1).

    The scores of a block of W tokens are computed with itself and the two neighboring blocks, so
    that time and memory grow with the length, not with its square. Rows are padded internally to
    whole blocks. The bias is a `RelativeBias`, which is computed only for the distances within
    these blocks.

    Attributes:
        block: W, the paper's radius r plus 1.
    """

    block: int = dataclasses.field(kw_only=True)

    def _core(self, mask: AttentionMask, bias: Any, extra: PyTree) -> Any:
        return functools.partial(
            _attend_near, core=self.compute.core, block=self.block, global_tokens=extra
        )

    def _check_core_has_scores(self) -> None:
        raise ValueError(
            "collect='attention_scores': local attention never has the scores of all pairs of "
            "tokens"
        )


class TransientGlobalAttention(LocalAttention):
    """Local attention, and attention to the global tokens of the document.

    Guo et al. 2021, section 3.1.2: a global token is the normed sum of its tokens. Each layer
    computes it from its input, and projects it to keys and values in the same way as tokens.
    `Shared.extra` is the `Globals`.

    Attributes:
        make_norm: factory of the norm of the sums.
    """

    make_norm: Callable[..., nn.Module] = dataclasses.field(kw_only=True)

    def setup(self) -> None:
        super().setup()
        self.global_norm = self.make_norm()

    def attend(
        self, x: Float[Array, "B T D"], keys_values: KeyValues, *, extra: Globals, **settings: Any
    ) -> tuple[Float[Array, "B T D"], None]:
        """Return the output for each token, see `Attention.attend`."""
        global_keys = self.keys_values(self.global_norm(extra.sums(x)))
        return super().attend(
            x, keys_values, extra=dataclasses.replace(extra, keys_values=global_keys), **settings
        )


def _attend_near(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    core: Any,
    block: int,
    global_tokens: Globals | None,
    bias: RelativeBias,
    mask: AttentionMask,
    **settings: Any,
) -> Float[Array, "B T H K"]:
    """Return the attention output over near tokens and, if given, global tokens."""
    batch, length = query.shape[:2]
    query_segments, key_segments = mask.segments(batch=batch, queries=length, keys=length)
    queries, query_segments = into_blocks(query, block), into_blocks(query_segments, block)
    seen = _near_keys(
        keys_values, query_segments, key_segments, bias, block=block, dtype=query.dtype
    )
    if global_tokens is not None:
        seen = seen.beside(_global_keys(global_tokens, query_segments, block=block))
    number = queries.shape[1]

    def rows(x: Float[Array, "B n ..."]) -> Float[Array, "b ..."]:
        return x.reshape(-1, *x.shape[2:])

    out = core(
        rows(queries),
        KeyValues.from_positions(rows(seen.key), rows(seen.value)),
        bias=rows(seen.bias),
        mask=ComputedMask(allowed=rows(seen.allowed)[:, None]),
        **settings,
    )
    return out.reshape(batch, number * block, *query.shape[2:])[:, :length]


@dataclasses.dataclass(frozen=True)
class _Seen:
    """The S keys and values that n blocks of W queries attend to, with mask and bias.

    The axes B and n of a bias that is the same for all blocks are 1.
    """

    key: Float[Array, "B n S H K"]
    value: Float[Array, "B n S H K"]
    allowed: Bool[Array, "B n W S"]
    bias: Float[Array, "B n H W S"]

    def beside(self, other: "_Seen") -> "_Seen":
        """Concatenate these keys and the keys of `other`."""
        bias = jnp.broadcast_to(self.bias, (*other.bias.shape[:-1], self.bias.shape[-1]))
        return _Seen(
            key=jnp.concatenate([self.key, other.key], axis=2),
            value=jnp.concatenate([self.value, other.value], axis=2),
            allowed=jnp.concatenate([self.allowed, other.allowed], axis=-1),
            bias=jnp.concatenate([bias, other.bias], axis=-1),
        )


def _near_keys(
    keys_values: KeyValues,
    query_segments: Int[Array, "B n W"],
    key_segments: Int[Array, "B T"],
    bias: RelativeBias,
    *,
    block: int,
    dtype: Any,
) -> _Seen:
    """Return the tokens of each block and its neighbors, masked beyond W - 1 slots away."""
    near = with_neighbors(into_blocks(key_segments, block))
    near = jnp.where(neighbors_exist(query_segments.shape[1], block), near, 0)[:, :, None]
    in_radius = np.abs(distances(block)) < block
    # The keys begin one block before the queries.
    terms = dataclasses.replace(bias, offset=block).dense(
        queries=block, keys=3 * block, dtype=dtype
    )
    key, value = (with_neighbors(into_blocks(x, block)) for x in keys_values.by_position())
    return _Seen(
        key=key,
        value=value,
        allowed=(query_segments[..., None] == near) & (near > 0) & in_radius,
        bias=terms[None],
    )


def _global_keys(
    global_tokens: Globals, query_segments: Int[Array, "B n W"], *, block: int
) -> _Seen:
    """Return the global tokens; a token may attend to the global tokens of its document."""
    assert global_tokens.keys_values is not None  # the layer computed them
    segments = global_tokens.segments[:, None, None]
    of_tokens = jnp.maximum(global_tokens.of_tokens, 0)
    terms = jnp.take(global_tokens.bias, of_tokens, axis=0)  # [B T H G]

    def for_blocks(x: Float[Array, "B G H K"]) -> Float[Array, "B n G H K"]:
        return jnp.broadcast_to(x[:, None], (x.shape[0], query_segments.shape[1], *x.shape[1:]))

    key, value = map(for_blocks, global_tokens.keys_values.by_position())
    return _Seen(
        key=key,
        value=value,
        allowed=(query_segments[..., None] == segments) & (segments > 0),
        bias=jnp.moveaxis(into_blocks(terms, block), 2, 3),
    )


def build(config: LongT5Config) -> nn.Module:
    """Build the network of a config with the keys of SIZES.

    Args:
        config: see `t5.build`; `architecture` is one of ARCHITECTURES. `encoder_attention` is
            `local` or `transient_global`; `local_radius` is the distance of the farthest token that
            a token attends to (the paper's r), `global_block` the number of tokens in a global
            token (the paper's k). `attention` is the implementation of the decoder's attention.

    Raises:
        ValueError: the architecture, attention or feed-forward is unknown, or `global_block` is
            below 1.
    """
    choose("model.architecture", config.architecture, dict.fromkeys(ARCHITECTURES))
    if config.global_block < 1:
        raise ValueError(f"model.global_block={config.global_block} must be 1 token or more")
    make_feed_forwards = (t5.feed_forward(config),)
    attention, tables = choose(
        "model.encoder_attention",
        config.encoder_attention,
        {
            "local": (LocalAttention, {}),
            "transient_global": _transient_global(config),
        },
    )
    settings = t5.attention_settings(config)
    settings["compute"] = dataclasses.replace(config.compute, core=dense_core)
    encoder = t5.tower(
        config,
        layers=config.encoder_layers,
        make_feed_forwards=make_feed_forwards,
        make_self_attention=functools.partial(attention, **settings, block=config.local_radius + 1),
        # The attention computes only the biases of near tokens, which are few.
        make_bias=t5.relative_position_bias(config, in_core=True),
        **tables,
    )
    return t5.network(config, make_feed_forwards=make_feed_forwards, make_encoder=encoder)


def _transient_global(config: LongT5Config) -> tuple[Callable[..., nn.Module], dict[str, Any]]:
    """Return a factory of the attention, and the factory of the `Globals` that its layers share."""
    norm = functools.partial(RMSNorm, compute=config.compute)
    tokens = functools.partial(
        GlobalTokens,
        block=config.global_block,
        make_bias=t5.relative_position_bias(config, in_core=False),
    )
    attention = functools.partial(TransientGlobalAttention, make_norm=norm)
    return attention, {"make_extra": tokens}


SYSTEM = System(
    name="longt5",
    sizes=SIZES,
    build=build,
    adapt=functools.partial(
        adaptation, structure=("d_adapter", "encoder_attention"), new=t5.ADAPTERS
    ),
    tasks={"": Task(loss=autoregressive.loss, prediction="text")},
)


# LongT5 in Hugging Face's folders: T5's tensors, except for the encoder's attention.

_TYPES = {"local": "local", "transient-global": "transient_global"}
_NAMES = {"local": "LocalSelfAttention", "transient_global": "TransientGlobalSelfAttention"}


def _derive_settings(
    config: Settings, settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    derived = t5.derive_settings(config, settings, names)
    return {**derived, "encoder_attention": _TYPES[config.get("encoder_attention_type", "local")]}


def _derive_config(settings: Settings) -> dict[str, Any]:
    (theirs,) = (name for name, ours in _TYPES.items() if ours == settings["encoder_attention"])
    return {**t5.derive_config(settings), "encoder_attention_type": theirs}


def _weights(name: str) -> WeightMap:
    """Return the weight map; `name` is Hugging Face's name of the encoder's self-attention."""
    first = f"encoder.block.0.layer.0.{name}"
    sublayer = "encoder.block.{layer}.layer.0"
    return {
        **t5.HUGGING_FACE.weights,
        **t5.attention_weights("encoder/layers/{layer}/self_attention", f"{sublayer}.{name}"),
        "encoder/relative_position_bias/embedding": f"{first}.relative_attention_bias.weight",
        "encoder/extra/relative_position_bias/embedding": (
            f"{first}.global_relative_attention_bias.weight"
        ),
        "encoder/layers/{layer}/self_attention/global_norm/scale": (
            f"{sublayer}.{name}.global_input_layer_norm.weight"
        ),
    }


def _variant(settings: Settings) -> HuggingFaceFormat:
    """Return the format with the names of the network's encoder attention."""
    weights = _weights(_NAMES[settings["encoder_attention"]])
    return dataclasses.replace(HUGGING_FACE, weights=weights, variant=None)


HUGGING_FACE = dataclasses.replace(
    t5.HUGGING_FACE,
    system="longt5",
    model_types={"longt5": "LongT5"},
    defaults=SIZES["local_base"],
    settings={
        **t5.HUGGING_FACE.settings,
        "encoder_attention_type": Setting("", one_of(*_TYPES), default="local"),
        "local_radius": Setting("local_radius", integers(1, 2**20), default=127),
        "global_block_size": Setting("global_block", COUNT, default=16),
    },
    derive_settings=_derive_settings,
    derive_config=_derive_config,
    weights=_weights(_NAMES["local"]),
    unused=(),
    variant=_variant,
)
