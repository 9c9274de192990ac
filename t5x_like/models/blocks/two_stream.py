"""A layer of two streams with one set of weights, and a memory of the text before."""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.blocks.residual import PostNormBlock, refuse_cross_attention
from t5x_like.models.blocks.shared import Shared


@flax.struct.dataclass
class Streams:
    """What the streams attend to, for `Shared.extra`.

    Attributes:
        masks: by stream, over the keys of the memory and then those of the row.
        extras: by stream, the `extra` of its attention.
        blind: queries of the stream "query" that attend to nothing, or None. A softmax over
            nothing is the mean of all values, their own among them.
        reused: tokens at the beginning of each row that the next one goes on from; None: all.
    """

    masks: Mapping[str, AttentionMask]
    extras: Mapping[str, PyTree]
    blind: Bool[Array, "B P"] | None = None
    reused: Int[Array, " B"] | None = None


class TwoStreamBlock(PostNormBlock):
    """norm(x + sublayer(x)) for two streams (Yang et al. 2019, section 2.3 and appendix A.2).

    The carry has the stream "content", [B, T, D], and perhaps a stream "query", [B, P, D]: places
    to predict, which do not see their own tokens. Both have the same weights, and both attend to
    the keys and values of the content alone, with those of the memory before them.

    `Shared.extra` is a `Streams`. There is no cross-attention.
    """

    def setup(self) -> None:
        refuse_cross_attention(self)
        super().setup()

    def __call__(  # type: ignore[override]
        self, carry: dict[str, Array], shared: Shared, memory: Float[Array, "B M D"] | None
    ) -> tuple[dict[str, Array], Any]:
        """The layer's output by stream, and the next memory if one was given.

        Where `shared.collect` is not empty, a `Collected` takes the place of the memory; its
        scores are by stream.
        """
        streams: Streams = shared.extra
        content = carry["content"]
        context = content if memory is None else jnp.concatenate([memory, content], axis=1)
        keys_values = self.self_attention.keys_values(context)
        after: dict[str, Array] = {}
        scores: Any = {}
        for name, x in carry.items():
            y, scores[name] = self.self_attention.attend(
                x,
                keys_values,
                mask=streams.masks[name],
                extra=streams.extras[name],
                deterministic=shared.deterministic,
                with_scores=shared.with_scores,
            )
            if name == "query" and streams.blind is not None:
                y = jnp.where(streams.blind[..., None], 0, y)
            x = self._sublayer_output(x, y, self.self_attention_norm, shared)
            y = self.feed_forward(x, deterministic=shared.deterministic)
            after[name] = self._sublayer_output(x, y, self.feed_forward_norm, shared)
        if shared.collect:
            return after, shared.collected(after, scores if shared.with_scores else None)
        if memory is None:
            return after, None
        kept = remembered(context, streams.reused, size=memory.shape[1])
        return after, jax.lax.stop_gradient(kept)


def remembered(
    context: Float[Array, "B S *D"], reused: Int[Array, " B"] | None, *, size: int
) -> Float[Array, "B M *D"]:
    """The last M before the text that the next row begins with.

    Args:
        context: the memory, M, and then the row.
        reused: tokens at the beginning of each row that the next one goes on from; None: all.
        size: M.
    """
    if reused is None:
        return context[:, context.shape[1] - size :]
    places = reused[:, None] + jnp.arange(size)
    places = places.reshape(*places.shape, *[1] * (context.ndim - 2))
    return jnp.take_along_axis(context, places, axis=1)
