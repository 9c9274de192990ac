"""SpanBERT's head: predict masked tokens from their states and from the ends of their span."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.models.embeddings.token_embeddings import TiedHead
from t5x_like.models.linear import Initializer, Linear, keep_whole
from t5x_like.models.types import Activation, Batch, Outputs


class SpanBoundary(nn.Module):
    """Predict the tokens of a span from the states beside it (Joshi et al. 2020, section 3.2).

    With x_l and x_r the states to the left and right of a span, p_n the embedding of its place n:

        h = norm(f(W1 [x_l; x_r; p_n]));   y = norm(f(W2 h));   logits = E y + b

    Attributes:
        places: rows of the table of places. Tokens further from the left end have meaningless
            logits.
        features: width of p_n.
        activation: f.
    """

    make_norm: Callable[..., nn.Module]
    places: int
    features: int
    activation: Activation
    kernel_init: Initializer
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B L D"], table: Float[Array, "V D"], batch: Batch
    ) -> Outputs:
        """`boundary_logits`, float32 [B, L, V], valid where `boundary_known`, bool [B, L], is True.

        Args:
            batch: `encoder_span_left`, `encoder_span_right` [B, L]: the indices of x_l and x_r in
                the row, 0 for a token outside of spans. With `predicted_positions` [B, P] only
                those tokens are predicted, and L above is P.
        """
        left, right = batch["encoder_span_left"], batch["encoder_span_right"]
        at = jnp.broadcast_to(jnp.arange(left.shape[1]), left.shape)
        if "predicted_positions" in batch:
            at = batch["predicted_positions"]
            left, right = (jnp.take_along_axis(x, at, axis=1) for x in (left, right))
        place = at - left - 1
        known = (right > 0) & (place < self.places)
        ends = [jnp.take_along_axis(hidden, x[..., None], axis=1) for x in (left, right)]
        x = jnp.concatenate([*ends, self._place_vectors(jnp.where(known, place, 0))], axis=-1)
        x = self._layer(x, hidden.shape[-1], ("boundary", "mlp"), "first")
        x = self._layer(x, table.shape[1], ("embed", "mlp"), "second")
        logits = TiedHead(use_bias=True, name="output")(x, table)
        return {"boundary_logits": logits, "boundary_known": known}

    def _place_vectors(self, place: Array) -> Array:
        init = nn.with_logical_partitioning(self.kernel_init, ("positions", "boundary"))
        vectors = self.param("place", init, (self.places, self.features))
        # A product for a dozen rows, since the gradient of a gather is a slow scatter.
        return nn.one_hot(place, self.places, dtype=self.dtype) @ vectors.astype(self.dtype)

    def _layer(self, x: Array, width: int, axes: tuple[str, str], name: str) -> Array:
        x = Linear(
            (width,),
            axes=axes,
            use_bias=True,
            kernel_init=self.kernel_init,
            dtype=self.dtype,
            name=name,
        )(x)
        return self.make_norm(name=f"{name}_norm")(self.activation(keep_whole(x)))


class SpanPretraining(nn.Module):
    """Predict masked tokens from their own states and from the ends of their spans.

    Attributes:
        make_masked_lm: factory of models/heads/encoder_heads.py's `MaskedLM`.
        make_boundary: factory of `SpanBoundary`.
    """

    make_masked_lm: Callable[..., nn.Module]
    make_boundary: Callable[..., nn.Module]

    @nn.compact
    def __call__(
        self, hidden: Array, table: Array, batch: Batch, *, deterministic: bool = True
    ) -> Outputs:
        """`logits` of tokens; with `encoder_span_left` in the batch also `SpanBoundary`'s."""
        outputs = self.make_masked_lm(name="masked_lm")(hidden, table, batch)
        if self.is_initializing():  # the shapes of the weights do not depend on the spans
            none = jnp.zeros_like(batch["encoder_input_tokens"])
            batch = {"encoder_span_left": none, "encoder_span_right": none} | dict(batch)
        if "encoder_span_left" in batch:
            outputs |= self.make_boundary(name="boundary")(hidden, table, batch)
        return outputs
