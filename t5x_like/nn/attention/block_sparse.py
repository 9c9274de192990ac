"""Block-sparse attention: each block of queries attends to a few blocks of keys.

Also blocks of tokens with their neighboring blocks, for local attention in linear time.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like import partitioning
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask, ComputedMask


def into_blocks(x: Float[Array, "B L ..."], block: int) -> Float[Array, "B n W ..."]:
    """Split rows into n blocks of W = `block` tokens; the last is padded with zeros."""
    batch, length = x.shape[:2]
    number = -(-length // block)
    x = jnp.pad(x, [(0, 0), (0, number * block - length)] + [(0, 0)] * (x.ndim - 2))
    return x.reshape(batch, number, block, *x.shape[2:])


def with_neighbors(x: Float[Array, "B n W ..."]) -> Float[Array, "B n S ..."]:
    """Concatenate each block with its two neighbors (S = 3 W), which wrap around at the ends."""
    return jnp.concatenate([jnp.roll(x, shift, axis=1) for shift in (1, 0, -1)], axis=2)


def neighbors_exist(number: int, block: int) -> Bool[np.ndarray, "n S"]:
    """Return False for the neighbors of `with_neighbors` that wrap around, and otherwise True."""
    neighbor = np.arange(number)[:, None] + np.array([-1, 0, 1])
    return np.repeat((neighbor >= 0) & (neighbor < number), block, axis=1)


def distances(block: int) -> Int[np.ndarray, "W S"]:
    """Return the slot differences from each token of a block to the tokens of `with_neighbors`."""
    return np.arange(3 * block) - block - np.arange(block)[:, None]


# The blocks that a query attends to: its own and its neighbors, random blocks, and the first and
# the last block (Zaheer et al. 2020, section 2). With `global`, queries of the first and the last
# block attend to all blocks.
PARTS = ("window", "random", "global")


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The blocks of keys that the queries of a block attend to.

    Attributes:
        block: the number of tokens in a block.
        parts: any of PARTS.
        random: the number of random blocks.
        random_blocks: `fixed`: the blocks are the same for all texts of a length, but differ
            between layers and heads; `first`: all are replaced by the first block, as in Hugging
            Face's evaluation, so that its keys count `random` times.
    """

    block: int
    parts: tuple[str, ...] = PARTS
    random: int = 3
    random_blocks: str = "fixed"

    def is_dense(self, length: int) -> bool:
        """Return whether texts of this length get dense attention: blocks would save little."""
        return length <= (5 + 2 * self.random) * self.block

    def choose(self, length: int, *, layers: int, heads: int) -> Int[np.ndarray, "N H n R"]:
        """Choose the random blocks of each layer, head and block of queries.

        The result depends only on the pattern and the arguments, so that a resumed run has the same
        blocks. Neighbors and global blocks in `parts` are not chosen: a query attends to them
        anyway.
        """
        number = -(-length // self.block)
        if self.random_blocks == "first":
            return np.zeros((layers, heads, number, self.random), np.int32)
        chosen = np.empty((layers, heads, number, self.random), np.int32)
        for layer, head in np.ndindex(layers, heads):
            random = np.random.default_rng((layer, head, number))
            for query in range(number):
                near = [0, number - 1] if "global" in self.parts else []
                near += [query - 1, query, query + 1] if "window" in self.parts else []
                others = np.setdiff1d(np.arange(number), near)
                chosen[layer, head, query] = random.choice(others, self.random, replace=False)
        return chosen


class BlockSparseAttention(Attention):
    """Self-attention of blocks of queries to blocks of keys (Zaheer et al. 2020, section 2).

    Time and memory are linear in the length: each of the n blocks attends to itself and its 2
    neighbors, R random blocks and 2 global blocks, and the global blocks attend to all. Neighbors
    are found by rolling the keys, random blocks by a gather. Texts are padded internally to whole
    blocks; padding attends to nothing.

    `Shared.extra` has the random blocks of the layer, [H, n, R]: see `PatternStack`. Without them
    attention is dense.

    Attributes:
        pattern: the blocks that each block attends to.
    """

    pattern: Pattern = dataclasses.field(kw_only=True)

    def _core(self, mask: AttentionMask, bias: Any, extra: PyTree) -> Any:
        if extra is None:
            return self.compute.core
        assert bias is None  # biases are not implemented for blocks
        return functools.partial(
            _block_sparse, core=self.compute.core, pattern=self.pattern, random_blocks=extra
        )


def _block_sparse(
    query: Float[Array, "B T H K"],
    keys_values: KeyValues,
    *,
    core: Any,
    pattern: Pattern,
    random_blocks: Int[Array, "H n R"],
    mask: AttentionMask,
    dropout_rng: Array | None = None,
    **settings: Any,
) -> Float[Array, "B T H K"]:
    batch, length = query.shape[:2]
    width = pattern.block
    number = -(-length // width)

    def blocks(x: Float[Array, "B T ..."]) -> Float[Array, "B n W ..."]:
        x = jnp.pad(x, [(0, 0), (0, number * width - length)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(batch, number, width, *x.shape[2:])

    assert mask.key_segments is not None  # encoders have them
    key, value, segments = map(blocks, (*keys_values.by_position(), mask.key_segments))
    query_segments = None if mask.query_segments is None else blocks(mask.query_segments)
    queries = blocks(query)
    is_global = "global" in pattern.parts
    inner = slice(1, -1) if is_global else slice(None)
    rngs = (None, None) if dropout_rng is None else tuple(jax.random.split(dropout_rng))
    count = queries[:, inner].shape[1]

    def rows(x: Float[Array, "B n ..."]) -> Float[Array, "b ..."]:
        return x[:, inner].reshape(batch * count, *x.shape[2:])

    def attend(step: tuple[Array, ...]) -> Float[Array, "b W h K"]:
        query, key, value, random_blocks, number = step
        chosen = _Chosen(pattern, random_blocks)
        return core(
            rows(query),
            KeyValues.from_positions(rows(chosen.keys(key)), rows(chosen.keys(value))),
            mask=ComputedMask(allowed=rows(chosen.masks(segments, query_segments))),
            dropout_rng=None if rngs[0] is None else jax.random.fold_in(rngs[0], number),
            **settings,
        )

    out = _one_head_at_a_time(attend, queries, key, value, random_blocks)
    out = out.reshape(batch, count, *queries.shape[2:])
    if is_global:
        both = _ends(
            queries, query_segments, keys_values, core, mask=mask, dropout_rng=rngs[1], **settings
        )
        out = jnp.concatenate([both[:, :1], out, both[:, 1:]], axis=1)
    out = jnp.where((segments > 0)[..., None, None], out, 0)
    return out.reshape(batch, number * width, *query.shape[2:])[:, :length]


def _one_head_at_a_time(
    attend: Callable[[tuple[Array, ...]], Float[Array, "b W h K"]],
    queries: Float[Array, "B n W H K"],
    key: Float[Array, "B n W H K"],
    value: Float[Array, "B n W H K"],
    random_blocks: Int[Array, "H n R"],
) -> Float[Array, "b W h _ K"]:
    """Attend with one head per device (h in total) at a time, recomputed in the backward pass.

    The chosen keys and the scores of all heads would take most of a layer's memory, and not fit
    into a CPU's caches.
    """

    def apart(x: Array, *, axis: int) -> Array:
        at_once = partitioning.parts("activation_heads")
        shape = (at_once, x.shape[axis] // at_once)  # no -1: there may be no random block
        x = x.reshape(*x.shape[:axis], *shape, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis + 1, 0)

    blocks = apart(random_blocks, axis=0)
    steps = (*(apart(x, axis=3) for x in (queries, key, value)), blocks, jnp.arange(len(blocks)))
    out = jax.lax.map(jax.checkpoint(attend), steps)
    return jnp.moveaxis(out, 0, 3)


def _ends(
    queries: Float[Array, "B n W H K"],
    segments: Int[Array, "B n W"] | None,
    keys_values: KeyValues,
    core: Any,
    *,
    mask: AttentionMask,
    **settings: Any,
) -> Float[Array, "B 2 W H K"]:
    """Return the weighted values of the first and the last block, which attend to all keys."""

    def both(x: Float[Array, "B n W ..."]) -> Float[Array, "B S ..."]:
        return jnp.concatenate([x[:, 0], x[:, -1]], axis=1)

    mask = dataclasses.replace(mask, query_segments=None if segments is None else both(segments))
    out = core(both(queries), keys_values, mask=mask, **settings)
    return out.reshape(queries.shape[0], 2, *queries.shape[2:])


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """Gathers the blocks of keys that each block of queries attends to, concatenated."""

    pattern: Pattern
    random_blocks: Int[Array, "H n R"]

    def keys(self, x: Float[Array, "B n W H K"]) -> Float[Array, "B n S H K"]:
        """Return the keys or values of the chosen blocks."""
        parts = []
        if "global" in self.pattern.parts:
            parts += [jnp.broadcast_to(end, x.shape) for end in (x[:, :1], x[:, -1:])]
        if "window" in self.pattern.parts:
            parts += [jnp.roll(x, shift, axis=1) for shift in (1, 0, -1)]
        if "random" in self.pattern.parts:
            heads = jnp.moveaxis(x, 3, 1)  # [B H n W K]
            taken = jax.vmap(lambda x, chosen: x[:, chosen], in_axes=(1, 0), out_axes=1)(
                heads, self.random_blocks
            )  # [B H n R W K]
            taken = jnp.moveaxis(taken, 1, 4)  # [B n R W H K]
            parts += [taken[:, :, n] for n in range(taken.shape[2])]
        return jnp.concatenate(parts, axis=2)

    def masks(
        self, keys: Int[Array, "B n W"], queries: Int[Array, "B n W"] | None
    ) -> Bool[Array, "B n H W S"]:
        """Return which chosen keys are in the segment of each query, counting no key twice."""
        number, width = keys.shape[1:]
        heads = self.random_blocks.shape[0]
        per_head = jnp.broadcast_to(keys[..., None, None], (*keys.shape, heads, 1))
        segments = jnp.moveaxis(self.keys(per_head)[..., 0], 3, 2)  # [B n H S]
        segments = jnp.where(
            jnp.repeat(self._once(number), width, axis=1)[None, :, None], segments, 0
        )
        if queries is None:
            return (segments > 0)[:, :, :, None]
        return (segments[:, :, :, None] == queries[:, :, None, :, None]) & (
            segments[:, :, :, None] > 0
        )

    def _once(self, number: int) -> Bool[np.ndarray, "n blocks"]:
        """Return False for neighbors outside the text, or included as global blocks."""
        query = np.arange(number)
        parts = []
        is_global = "global" in self.pattern.parts
        if is_global:
            parts += [np.ones(number, bool)] * 2
        if "window" in self.pattern.parts:
            for offset in (-1, 0, 1):
                near = query + offset
                first, last = (1, number - 2) if is_global else (0, number - 1)
                parts.append((near >= first) & (near <= last))
        if "random" in self.pattern.parts:
            parts += [np.ones(number, bool)] * self.pattern.random
        return np.stack(parts, axis=1)
