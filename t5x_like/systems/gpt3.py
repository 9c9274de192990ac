"""GPT-3: Brown et al. 2020, "Language Models are Few-Shot Learners".

Also the patterns of Child et al. 2019, "Generating Long Sequences with Sparse Transformers".
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from t5x_like.losses import autoregressive
from t5x_like.names import choose
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask, ComputedMask
from t5x_like.nn.stack import LayerGroup, Stack
from t5x_like.systems import gpt2
from t5x_like.systems.system import System, Task


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Gpt3Config(gpt2.Gpt2Config):
    """The settings of a GPT-3.

    Attributes:
        pattern: how layers alternate, a name in PATTERNS.
        window: the width of the band of `banded`, in tokens.
        stride: l of `strided` and `fixed`, in tokens.
        summary: c of `fixed`, the tokens of each block that all later blocks attend to.
    """

    positions: int = 2048
    head_width: int
    pattern: str = "banded"
    window: int = 256
    stride: int = 128
    summary: int = 8
    dropout: float = 0.0


def _size(layers: int, d_model: int, heads: int, head_width: int) -> Gpt3Config:
    return Gpt3Config(
        layers=layers,
        d_model=d_model,
        d_ff=4 * d_model,
        heads=heads,
        head_width=head_width,
    )


# Table 2.1, in which heads times head width of xl and 13b is not the model's width.
SIZES: dict[str, Gpt3Config] = {
    "small": _size(12, 768, 12, 64),
    "medium": _size(24, 1024, 16, 64),
    "large": _size(24, 1536, 16, 96),
    "xl": _size(24, 2048, 24, 128),
    "2_7b": _size(32, 2560, 32, 80),
    "6_7b": _size(32, 4096, 32, 128),
    "13b": _size(40, 5140, 40, 128),
    "175b": _size(96, 12288, 96, 128),
}

loss = autoregressive.loss


# ---- Attention patterns of Child et al. 2019, section 4.3: the sets A^(1) and A^(2).


@flax.struct.dataclass(kw_only=True)
class StrideMask(AttentionMask):
    """An AttentionMask under which a query attends only to every `stride`-th slot up to its own."""

    stride: int = flax.struct.field(pytree_node=False)

    def dense(self, *, queries: int, keys: int) -> Bool[Array, "B 1 T S"]:
        """Return the matrix for `queries` (T) and `keys` (S)."""
        distance = (self.first_slot + jnp.arange(queries))[:, None] - jnp.arange(keys)
        column = (distance % self.stride == 0)[None, None]
        allowed = super().dense(queries=queries, keys=keys)
        return column if allowed is None else allowed & column


class StridedAttention(Attention):
    """Causal attention to every l-th token: A^(2) of `strided`, {j <= i : (i - j) mod l = 0}.

    Whole texts are transposed to l columns of T / l tokens, so that T x T / l scores are computed.

    Attributes:
        stride: l.
    """

    stride: int = dataclasses.field(kw_only=True)

    def update_cache(
        self, new: KeyValues, cache: KeyValues | None, *, mask: AttentionMask, first: bool
    ) -> tuple[KeyValues, AttentionMask, KeyValues | None]:
        """Write to the cache as `Attention` does, and return a mask with the stride."""
        strided = StrideMask(**vars(mask), stride=self.stride)
        return super().update_cache(new, cache, mask=strided, first=first)

    def _core(self, mask: AttentionMask, bias: Any, extra: Any) -> Any:
        if mask.offset is not None:  # a cache
            return super()._core(mask, bias, extra)
        return functools.partial(_in_columns, core=self.compute.core, stride=self.stride)


def _in_columns(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    mask: AttentionMask,
    core: Any,
    stride: int,
    **settings: Any,
) -> Float[Array, "B T H K"]:
    batch, length = query.shape[:2]
    number = -(-length // stride)

    def columns(x: Float[Array, "B T ..."]) -> Float[Array, "b n ..."]:
        # The padding at the end is seen by nobody, since attention is causal.
        x = jnp.pad(x, [(0, 0), (0, number * stride - length)] + [(0, 0)] * (x.ndim - 2))
        x = jnp.swapaxes(x.reshape(batch, number, stride, *x.shape[2:]), 1, 2)
        return x.reshape(batch * stride, number, *x.shape[3:])

    query_segments, key_segments = (
        None if segments is None else columns(segments)
        for segments in (mask.query_segments, mask.key_segments)
    )
    within = AttentionMask(
        query_segments=query_segments, key_segments=key_segments, visibility=mask.visibility
    )
    pairs = KeyValues.from_positions(*map(columns, keys_values.by_position()))
    out = core(columns(query), pairs, mask=within, **settings)
    out = jnp.swapaxes(out.reshape(batch, stride, number, *query.shape[2:]), 1, 2)
    return out.reshape(batch, number * stride, *query.shape[2:])[:, :length]


class BlockAttention(Attention):
    """Causal attention within blocks of l tokens: A^(1) of `fixed`, {j <= i : j // l = i // l}.

    Tokens are counted from the beginning of each document. A block is a segment, and the window of
    l tokens gives T x 2 l scores, and a cache of l slots.
    """

    def attend(self, x: Float[Array, "B T D"], keys_values: KeyValues, **settings: Any) -> Any:
        """Return what `Attention.attend` does; `mask` and `positions` are required."""
        mask, positions = settings["mask"], settings["positions"]
        assert self.window is not None  # l
        if mask.query_segments is not None:  # a number for each block of each document
            starts = (positions % self.window == 0).astype(jnp.int32)
            blocks = jnp.where(mask.query_segments > 0, jnp.cumsum(starts, axis=1), 0)
            mask = dataclasses.replace(mask, query_segments=blocks, key_segments=blocks)
        else:
            blocks = _key_positions(mask, positions, keys=keys_values.length) // self.window + 1
            if mask.key_segments is not None:
                blocks = jnp.where(mask.key_segments > 0, blocks, 0)
            query_blocks = positions // self.window + 1
            mask = dataclasses.replace(mask, query_segments=query_blocks, key_segments=blocks)
        return super().attend(x, keys_values, **settings | {"mask": mask})


class SummaryAttention(Attention):
    """Causal attention to the last c tokens of each block: A^(2) of `fixed`.

    That is {j <= i : j mod l >= l - c}, where tokens are counted from the beginning of each
    document. For whole texts these keys are gathered, so that T x T c / l scores are computed. The
    output of the first l - c tokens, which attend to nothing, is 0.

    Attributes:
        stride: l.
        columns: c.
    """

    stride: int = dataclasses.field(kw_only=True)
    columns: int = dataclasses.field(kw_only=True)

    def attend(self, x: Float[Array, "B T D"], keys_values: KeyValues, **settings: Any) -> Any:
        """Return what `Attention.attend` does; `mask` and `positions` are required."""
        mask, positions = settings["mask"], settings["positions"]
        first = self.stride - self.columns
        keys = _key_positions(mask, positions, keys=keys_values.length)
        # The other keys become padding.
        read = keys % self.stride >= first
        segments = 1 if mask.key_segments is None else mask.key_segments
        mask = dataclasses.replace(mask, key_segments=jnp.where(read, segments, 0))
        y, scores = super().attend(x, keys_values, **settings | {"mask": mask})
        return jnp.where((positions >= first)[..., None], y, 0), scores

    def _core(self, mask: AttentionMask, bias: Any, extra: Any) -> Any:
        core = super()._core(mask, bias, extra)
        if mask.offset is not None:  # a cache
            return core
        return functools.partial(_of_summaries, core=core, stride=self.stride, columns=self.columns)


def _of_summaries(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    mask: AttentionMask,
    core: Any,
    stride: int,
    columns: int,
    **settings: Any,
) -> Float[Array, "B T H K"]:
    length = query.shape[1]
    query_segments, key_segments = mask.segments(batch=len(query), queries=length, keys=length)
    # No more than this many in a row, whatever the lengths of its documents.
    number = max(length * columns // stride, 1)
    slots = jnp.argsort(key_segments == 0, axis=1, stable=True)[:, :number]
    chosen = jnp.take_along_axis(key_segments, slots, axis=1)
    allowed = (query_segments[:, :, None] == chosen[:, None]) & (chosen[:, None] > 0)
    allowed &= slots[:, None] <= jnp.arange(length)[:, None]
    taken = KeyValues(
        *(
            jnp.take_along_axis(x, slots[:, None, :, None], axis=2)
            for x in (keys_values.key, keys_values.value)
        )
    )
    return core(query, taken, mask=ComputedMask(allowed=allowed[:, None]), **settings)


def _key_positions(
    mask: AttentionMask, positions: Int[Array, "B T"], *, keys: int
) -> Int[Array, "B S"]:
    """Return the keys' positions in their documents, from the queries'; negative in padding."""
    if mask.query_segments is not None:  # packed documents: keys and queries are the same tokens
        return positions
    slots = jnp.arange(keys) if mask.key_slots is None else mask.key_slots
    last = mask.first_slot + positions.shape[1] - 1  # padding is on the left
    return positions[:, -1:] + slots[None] - last


# ---- The network.


def build(config: Gpt3Config) -> nn.Module:
    """Build GPT-2's network, whose even and odd layers have different attention (section 2.1).

    Raises:
        ValueError: the pattern is unknown, one of its settings is out of range, a setting of
            another pattern is changed, or the number of layers is odd.
    """
    blocks = choose("model.pattern", config.pattern, PATTERNS)(config)
    if config.layers % 2:
        raise ValueError(
            f"model.layers={config.layers} must be even: layers with two kinds of attention "
            "alternate"
        )
    make_stack = functools.partial(
        Stack,
        make_block=functools.partial(LayerGroup, make_blocks=blocks),
        layers=config.layers // 2,
        compute=config.compute,
    )
    return gpt2.network(config, make_stack=make_stack)


LayerPair = tuple[Callable[..., nn.Module], Callable[..., nn.Module]]


def _banded(config: Gpt3Config) -> LayerPair:
    _check(config, "window")
    return _block(config), _block(config, window=config.window)


def _strided(config: Gpt3Config) -> LayerPair:
    _check(config, "stride")
    near = _block(config, window=config.stride + 1)  # {i - l, ..., i}
    return near, _block(config, StridedAttention, stride=config.stride)


def _fixed(config: Gpt3Config) -> LayerPair:
    _check(config, "stride", "summary")
    if config.summary > config.stride:
        raise ValueError(
            f"model.summary={config.summary} must be at most model.stride={config.stride}: it is "
            "a part of each block"
        )
    summaries = {"stride": config.stride, "columns": config.summary}
    block = _block(config, BlockAttention, window=config.stride)
    return block, _block(config, SummaryAttention, **summaries)


# The kinds of attention of even and of odd layers: dense and a band; the factorized attention of
# Child et al. 2019, in turn (section 5.2, the first of its three ways).
PATTERNS: dict[str, Callable[[Gpt3Config], LayerPair]] = {
    "banded": _banded,
    "strided": _strided,
    "fixed": _fixed,
}


def _block(
    config: Gpt3Config, attention: Callable[..., nn.Module] = Attention, **settings: Any
) -> Callable[..., nn.Module]:
    attention = functools.partial(attention, **settings)
    return gpt2.block(config, head_width=config.head_width, attention=attention)


def _check(config: Gpt3Config, *names: str) -> None:
    """Check the settings that the pattern reads, and that the others have their defaults."""
    others = {"window", "stride", "summary"} - {*names}
    config.check_unread(*sorted(others), because=f"model.pattern={config.pattern!r}")
    for name in names:
        if config[name] < 1:
            raise ValueError(
                f"model.{name}={config[name]} must be 1 or more for "
                f"model.pattern={config.pattern!r}"
            )


SYSTEM = System(
    name="gpt3",
    sizes=SIZES,
    build=build,
    older_defaults={
        "dropout_broadcast": True,
        "pattern": "banded",
        "stride": 128,
        "summary": 8,
    },
    tasks={
        "": Task(loss=loss, prediction="text"),
    },
)
