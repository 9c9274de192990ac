"""Global-local attention: text attends to near text and to global tokens, these to everything."""

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

from t5x_like.models.attention.cache import KeyValues
from t5x_like.models.attention.cores import KEPT, dense_core
from t5x_like.models.attention.masks import AttentionMask, ComputedMask
from t5x_like.models.attention.multi_head import Attention
from t5x_like.models.attention.neighbor_blocks import (
    distances,
    into_blocks,
    neighbors_exist,
    with_neighbors,
)
from t5x_like.models.linear import Initializer, Linear


@flax.struct.dataclass(kw_only=True)
class SentenceMask(AttentionMask):
    """Which tokens of a text, and which global tokens in front of it, see each other.

    Attributes:
        text_segments: the document of each token, 0 on padding.
        global_segments: the document of each global token, 0 where there is none.
        sentences: the global token of each token's sentence, counted from 1; 0 for none.
        hard_global: a global token sees the tokens of its sentence alone, not of its document.
        hard_text: a token sees the global token of its sentence alone.
    """

    text_segments: Int[Array, "B L"]
    global_segments: Int[Array, "B G"]
    sentences: Int[Array, "B L"]
    hard_global: bool = flax.struct.field(pytree_node=False, default=True)
    hard_text: bool = flax.struct.field(pytree_node=False, default=False)

    def own(self) -> Bool[Array, "B L G"]:
        """Whether a global token is that of a token's sentence."""
        numbers = jnp.arange(1, self.global_segments.shape[1] + 1)
        return self.sentences[:, :, None] == numbers

    def same_document(self) -> Bool[Array, "B L G"]:
        """Whether a token and a global token are of one document."""
        text, summary = self.text_segments[:, :, None], self.global_segments[:, None]
        return (text == summary) & (text > 0)


class GlobalLocalAttention(Attention):
    """Self-attention of global tokens followed by a text (Ainslie et al. 2020).

    A token of the text sees its block of W tokens, those beside it, and the G global tokens; these
    see each other and the text. Time and memory grow with L, not with its square. Queries, keys and
    values have the same projections on both sides, the outputs different ones.

    A score has a relative term, as in Shaw et al. 2018 with a bias: q * (k + a_r) + b_r, where r is
    the distance of two tokens, or of two global tokens, clipped to `distance`; and between the two
    kinds it is whether the token is of the sentence. Tokens and global tokens have tables of their
    own.

    Attributes:
        block: W.
        distance: the largest distance with a parameter of its own.
        relative_init: initializer of a_r.
    """

    block: int = dataclasses.field(kw_only=True)
    distance: int = dataclasses.field(kw_only=True)
    relative_init: Initializer = nn.initializers.normal(0.02)

    def setup(self) -> None:
        if self.core is not dense_core or self.position is not None or self.window is not None:
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
        """The output for each global token and each token.

        Args:
            mask: a `SentenceMask`, which has the number of global tokens.

        Raises:
            ValueError: scores are asked for, which are never all computed at once.
        """
        del bias, positions, extra  # positions are relative
        if with_scores:
            raise ValueError(
                "collect='attention_scores': global-local attention never has all scores at once"
            )
        assert isinstance(mask, SentenceMask)
        count = mask.global_segments.shape[1]
        axes = ("activation_batch", "activation_length", "activation_heads", None)
        query = checkpoint_name(nn.with_logical_constraint(self.query(x), axes), KEPT)
        drops = self.dropout > 0.0 and not deterministic
        rngs = jax.random.split(self.make_rng("dropout")) if drops else (None, None)
        settings: dict[str, Any] = {
            "scale": self.scale_factor,
            "dropout": self.dropout,
            "dropout_broadcast": self.dropout_broadcast,
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
        """The term of each relation: the 2 * distance + 1 distances, then not own and own."""
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
            product=self.product,
            dtype=self.dtype,
            name=name,
        )(checkpoint_name(values, KEPT))


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
    """The values of the text, block by block: of three blocks and all global tokens."""
    batch, length = query.shape[:2]
    number = -(-length // block)

    blocks = functools.partial(into_blocks, block=block)

    def rows(x: Float[Array, "B n ..."]) -> Float[Array, "b ..."]:
        return x.reshape(batch * number, *x.shape[2:])

    def keys(x: Float[Array, "B S H K"]) -> Float[Array, "b s H K"]:
        summaries, text = jnp.split(x, [mask.global_segments.shape[1]], axis=1)
        summaries = jnp.broadcast_to(summaries[:, None], (batch, number, *summaries.shape[1:]))
        return rows(jnp.concatenate([with_neighbors(blocks(text)), summaries], axis=2))

    segments = blocks(mask.text_segments)
    near = jnp.where(neighbors_exist(number, block), with_neighbors(segments), 0)
    own, seen = blocks(mask.own()), blocks(mask.same_document())
    seen = seen & own if mask.hard_text else seen
    same = (segments[..., None] == near[:, :, None]) & (near[:, :, None] > 0)

    terms = rows(blocks(jnp.moveaxis(relative, 1, 2)))  # [b W H R]
    terms = jnp.moveaxis(terms, 2, 1)  # [b H W R]
    bias = jnp.concatenate(
        [_of_distance(terms, distances(block), distance), _of_own(terms, rows(own)[:, None])],
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
    terms: Float[Array, "b H T R"], apart: Int[np.ndarray, "T S"], distance: int
) -> Float[Array, "b H T S"]:
    """The terms of the distances between T queries and S keys."""
    index = jnp.asarray(np.clip(apart, -distance, distance) + distance)
    return jnp.take_along_axis(terms, index[None, None], axis=-1)


def _of_own(terms: Float[Array, "b H T R"], own: Bool[Array, "b 1 T S"]) -> Float[Array, "b H T S"]:
    """The terms between two kinds of tokens."""
    return jnp.where(own, terms[..., -1:], terms[..., -2:-1])


def _from_global(
    terms: Float[Array, "B H G R"], mask: SentenceMask, *, distance: int
) -> Float[Array, "B H G S"]:
    """The relative terms of the global tokens to each other and to the text."""
    count = terms.shape[2]
    apart = np.arange(count) - np.arange(count)[:, None]
    own = jnp.moveaxis(mask.own(), 1, 2)[:, None]
    return jnp.concatenate([_of_distance(terms, apart, distance), _of_own(terms, own)], axis=-1)


def _seen_by_global(mask: SentenceMask) -> Bool[Array, "B 1 G S"]:
    """The global tokens and the tokens that each global token sees."""
    summary = mask.global_segments
    text = mask.same_document()
    text = text & mask.own() if mask.hard_global else text
    each_other = (summary[:, :, None] == summary[:, None]) & (summary[:, :, None] > 0)
    return jnp.concatenate([each_other, jnp.moveaxis(text, 1, 2)], axis=-1)[:, None]
