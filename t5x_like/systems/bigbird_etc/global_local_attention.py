"""Global-local attention: text attends to near text and global tokens, which attend to all.

Ainslie et al. 2020 (arXiv:2004.08483).
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like import partitioning
from t5x_like.nn.attention.block_sparse import (
    distances,
    into_blocks,
    neighbors_exist,
    with_neighbors,
)
from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import CONTEXT, QUERY, dense_core
from t5x_like.nn.attention.multi_head import Attention
from t5x_like.nn.attention.positions import AttentionMask, ComputedMask
from t5x_like.nn.linear import Initializer, Linear


@flax.struct.dataclass(kw_only=True)
class SentenceMask(AttentionMask):
    """Which tokens of a text, and which global tokens in front of it, attend to each other.

    Attributes:
        text_segments: the document of each token, 0 on padding.
        global_segments: the document of each global token, 0 if the global token is not used.
        sentences: the global token of each token's sentence, counted from 1; 0 for none.
        hard_global: whether a global token attends only to the tokens of its sentence, rather than
            of its document.
        hard_text: whether a token attends only to the global token of its sentence, rather than to
            all global tokens of its document.
        everywhere: the global tokens that attend to their document even if `hard_global` is set.
        paragraphs: the paragraph of each token, counted over the row, 0 on padding: tokens attend
            only to tokens of their paragraph. None: a document is one paragraph.
        global_paragraphs: the paragraph of each global token: two of different paragraphs have the
            relation of the largest distance.
        links: a second global token of each token, counted from 1; 0 for none. It is like the
            global token of its sentence, and stands for a candidate that the token mentions, or
            for its paragraph.
    """

    text_segments: Int[Array, "B L"]
    global_segments: Int[Array, "B G"]
    sentences: Int[Array, "B L"]
    hard_global: bool = flax.struct.field(pytree_node=False, default=True)
    hard_text: bool = flax.struct.field(pytree_node=False, default=False)
    everywhere: Bool[Array, "B G"] | None = None
    paragraphs: Int[Array, "B L"] | None = None
    global_paragraphs: Int[Array, "B G"] | None = None
    links: Int[Array, "B L"] | None = None

    def linked(self) -> Bool[Array, "B L G"]:
        """Return whether each token is in the sentence of each global token, or linked to it."""
        in_sentence = self._equal(self.sentences)
        return in_sentence if self.links is None else in_sentence | self._equal(self.links)

    def _equal(self, numbers: Int[Array, "B L"]) -> Bool[Array, "B L G"]:
        return numbers[:, :, None] == jnp.arange(1, self.global_segments.shape[1] + 1)

    def same_document(self) -> Bool[Array, "B L G"]:
        """Return whether each token and each global token belong to the same document."""
        text, summary = self.text_segments[:, :, None], self.global_segments[:, None]
        return (text == summary) & (text > 0)


class GlobalLocalAttention(Attention):
    """Self-attention of global tokens followed by a text (Ainslie et al. 2020).

    A token of the text attends to its block of W tokens, to the two neighboring blocks, and to the
    G global tokens; global tokens attend to each other and to the text. Time and memory grow with
    L, not with its square. Text and global tokens share the projections of queries, keys and
    values, but not the output projection.

    A score has a relative term, as in Shaw et al. 2018, with a bias: q * (k + a_r) + b_r. Between
    two tokens, or two global tokens, r is their distance, clipped to `distance`; between a token
    and a global token, r is whether the token belongs to the global token's sentence. Queries of
    tokens and of global tokens have separate tables a and b.

    Attributes:
        block: W.
        distance: the largest distance with separate parameters; larger distances share them.
        relative_init: initializer of a_r.
    """

    block: int = dataclasses.field(kw_only=True)
    distance: int = dataclasses.field(kw_only=True)
    relative_init: Initializer = nn.initializers.normal(0.02)

    def setup(self) -> None:
        others = self.position, self.window
        if self.compute.core is not dense_core or others != (None, None):
            raise ValueError(
                "a GlobalLocalAttention has its own core, positions and window: leave core, "
                "position and window out"
            )
        super().setup()

    @nn.compact
    def attend(
        self,
        x: Float[Array, "B T D"],
        keys_values: KeyValues,
        *,
        mask: AttentionMask,
        bias: Float[Array, "B H T S"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        extra: PyTree = None,
        deterministic: bool = True,
        with_scores: bool = False,
    ) -> tuple[Float[Array, "B T D"], None]:
        """Return the output for each global token, and then for each token of the text.

        Args:
            mask: a `SentenceMask`, from whose shape the number of global tokens is read.
            bias, positions, extra: not used.

        Raises:
            ValueError: `with_scores` is set: the scores are never all computed at once.
        """
        del bias, positions, extra  # positions are relative
        if with_scores:
            raise ValueError(
                "collect='attention_scores': global-local attention never has all scores at once"
            )
        assert isinstance(mask, SentenceMask)
        count = mask.global_segments.shape[1]
        axes = ("activation_batch", "activation_length", "activation_heads", None)
        query = checkpoint_name(partitioning.constrain(self.query(x), axes), QUERY)
        drops = self.compute.dropout > 0.0 and not deterministic
        rngs = jax.random.split(self.make_rng("dropout")) if drops else (None, None)
        settings: dict[str, Any] = {
            "scale": self.scale_factor,
            "dropout": self.compute.dropout,
            "dropout_broadcast": self.compute.dropout_broadcast,
        }
        text = _attend_from_text(
            query[:, count:],
            keys_values,
            self._relative("text", query[:, count:]),
            mask=mask,
            block=self.block,
            distance=self.distance,
            dropout_rng=rngs[0],
            **settings,
        )
        terms = self._relative("global", query[:, :count])
        summaries = dense_core(
            query[:, :count],
            keys_values,
            bias=_from_global(terms, mask, distance=self.distance),
            mask=ComputedMask(allowed=_seen_by_global(mask)),
            dropout_rng=rngs[1],
            **settings,
        )
        size = x.shape[-1]
        outs = [self._out("global_out", summaries, size), self._out("out", text, size)]
        return jnp.concatenate(outs, axis=1), None

    def _relative(self, side: str, query: Float[Array, "B T H K"]) -> Float[Array, "B H T R"]:
        """Return the score term of each relation r for each query.

        The R relations are the 2 * distance + 1 distances, then "another sentence" and "the same
        sentence".
        """
        shape = (2 * self.distance + 3, *query.shape[2:])
        axes = ("positions", "heads", "kv")
        init = nn.with_logical_partitioning(self.relative_init, axes)
        table = self.param(f"{side}_relative", init, shape)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, axes[:2])
        bias = self.param(f"{side}_relative_bias", zeros, shape[:2])
        terms = jnp.einsum("BTHK,RHK->BHTR", query, table.astype(query.dtype))
        return self.scale_factor * (terms + bias.T[:, None].astype(query.dtype))

    def _out(self, name: str, values: Float[Array, "B T H K"], size: int) -> Float[Array, "B T D"]:
        return Linear(
            (size,),
            axes=("heads", "kv", "embed"),
            contract=2,
            use_bias=self._has_bias("out"),
            kernel_init=self.out_init,
            compute=self.compute,
            name=name,
        )(checkpoint_name(values, CONTEXT))


def _attend_from_text(
    query: Float[Array, "B L H K"],
    keys_values: KeyValues,
    relative: Float[Array, "B H L R"],
    *,
    mask: SentenceMask,
    block: int,
    distance: int,
    **settings: Any,
) -> Float[Array, "B L H K"]:
    """Return the attention output of the text, computed block by block.

    Each block of queries attends to three blocks of the text and to all global tokens.
    """
    batch, length = query.shape[:2]
    number = -(-length // block)

    blocks = functools.partial(into_blocks, block=block)

    def rows(x: Float[Array, "B n ..."]) -> Float[Array, "b ..."]:
        return x.reshape(batch * number, *x.shape[2:])

    def keys(x: Float[Array, "B S H K"]) -> Float[Array, "b s H K"]:
        summaries, text = jnp.split(x, [mask.global_segments.shape[1]], axis=1)
        summaries = jnp.broadcast_to(summaries[:, None], (batch, number, *summaries.shape[1:]))
        return rows(jnp.concatenate([with_neighbors(blocks(text)), summaries], axis=2))

    segments = blocks(mask.text_segments if mask.paragraphs is None else mask.paragraphs)
    near = jnp.where(neighbors_exist(number, block), with_neighbors(segments), 0)
    linked, seen = blocks(mask.linked()), blocks(mask.same_document())
    seen = seen & linked if mask.hard_text else seen
    same = (segments[..., None] == near[:, :, None]) & (near[:, :, None] > 0)

    terms = rows(blocks(jnp.moveaxis(relative, 1, 2)))  # [b W H R]
    terms = jnp.moveaxis(terms, 2, 1)  # [b H W R]
    bias = jnp.concatenate(
        [_of_distance(terms, distances(block), distance), _of_own(terms, rows(linked)[:, None])],
        axis=-1,
    )
    out = dense_core(
        rows(blocks(query)),
        KeyValues.from_positions(*map(keys, keys_values.by_position())),
        bias=bias,
        mask=ComputedMask(allowed=rows(jnp.concatenate([same, seen], axis=-1))[:, None]),
        **settings,
    )
    return out.reshape(batch, number * block, *query.shape[2:])[:, :length]


def _of_distance(
    terms: Float[Array, "b H T R"], apart: Int[Array | np.ndarray, "*b T S"], distance: int
) -> Float[Array, "b H T S"]:
    """Return the relative terms of the distances `apart` between T queries and S keys."""
    index = jnp.clip(apart, -distance, distance) + distance
    index = index[None, None] if index.ndim == 2 else index[:, None]
    return jnp.take_along_axis(terms, index, axis=-1)


def _of_own(
    terms: Float[Array, "b H T R"], linked: Bool[Array, "b 1 T S"]
) -> Float[Array, "b H T S"]:
    """Return the relative terms between text tokens and global tokens."""
    return jnp.where(linked, terms[..., -1:], terms[..., -2:-1])


def _from_global(
    terms: Float[Array, "B H G R"], mask: SentenceMask, *, distance: int
) -> Float[Array, "B H G S"]:
    """Return the relative terms of the global tokens with each other and with the text."""
    count = terms.shape[2]
    apart: Any = np.arange(count) - np.arange(count)[:, None]
    if (paragraphs := mask.global_paragraphs) is not None:
        apart = jnp.where(paragraphs[:, :, None] == paragraphs[:, None], apart, distance)
    linked = jnp.moveaxis(mask.linked(), 1, 2)[:, None]
    return jnp.concatenate([_of_distance(terms, apart, distance), _of_own(terms, linked)], axis=-1)


def _seen_by_global(mask: SentenceMask) -> Bool[Array, "B 1 G S"]:
    """Return which global tokens and which tokens each global token attends to."""
    summary = mask.global_segments
    text = mask.same_document()
    if mask.hard_global:
        linked = mask.linked()
        text = text & (linked if mask.everywhere is None else linked | mask.everywhere[:, None])
    each_other = (summary[:, :, None] == summary[:, None]) & (summary[:, :, None] > 0)
    return jnp.concatenate([each_other, jnp.moveaxis(text, 1, 2)], axis=-1)[:, None]
