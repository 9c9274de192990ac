"""Masked language modeling: tokens predicted at the masked positions of an encoder's rows."""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from t5x_like.losses import labels
from t5x_like.losses.sums import LossSums, forward
from t5x_like.losses.token_cross_entropy import cross_entropy
from t5x_like.nn.compute import Batch, Outputs


@dataclasses.dataclass(frozen=True)
class MaskedTokens:
    """The positions of a batch at which tokens are predicted.

    Attributes:
        positions: indices in the row.
        targets: the original tokens.
        weights: loss weights; 0 at positions that only pad a row to P.
    """

    positions: Int[Array, "B P"]
    targets: Int[Array, "B P"]
    weights: Float[Array, "B P"]

    def cross_entropy(
        self,
        logits: Float[Array, "B P V"],
        *,
        where: Bool[Array, "B P"] | None = None,
        label_smoothing: float = 0.0,
    ) -> LossSums:
        """Return the cross-entropy of the original tokens, see `losses.cross_entropy`.

        Args:
            where: the positions to count; None for all.
        """
        weights = self.weights if where is None else jnp.where(where, self.weights, 0.0)
        return cross_entropy(logits, self.targets, weights, label_smoothing=label_smoothing)


def predict_masked(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    share: float,
    also: Num[Array, "B L"] | None = None,
    method: str | None = None,
) -> tuple[Any, MaskedTokens]:
    """Run a network that computes logits only at the masked positions.

    Args:
        batch: the inputs, `encoder_target_tokens` and `encoder_loss_weights` [B, L].
        rng: the dropout key; None in evaluation.
        share: see `predicted_positions`.
        also: weights of further tokens to predict, which are not masked.
        method: the module's method to call; None for `__call__`.

    Returns:
        The outputs, whose `logits` are [B, P, V], and the positions that the logits belong to.

    Raises:
        ValueError: the batch has no masked tokens, or `share` is not in (0, 1].
    """
    if "encoder_loss_weights" not in batch:
        raise ValueError(
            "this head predicts masked tokens, and the batch has none: set data.objective to one "
            "that masks tokens ('bert', 'roberta', ...), or model.head to one for the labels"
        )
    weights = batch["encoder_loss_weights"]
    weights = weights if also is None else weights + also
    positions, masked_weights = predicted_positions(weights, share=share)
    outputs = forward(
        module, params, {**batch, "predicted_positions": positions}, rng, method=method
    )
    targets = jnp.take_along_axis(batch["encoder_target_tokens"], positions, axis=1)
    return outputs, MaskedTokens(positions=positions, targets=targets, weights=masked_weights)


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    predicted: float = 0.2,
) -> LossSums:
    """Return the cross-entropy of masked tokens (Devlin et al. 2019, section 3.1).

    Args:
        rng: the dropout key; None in evaluation.
        predicted: the share of a row's positions that get logits; at least the share of tokens
            that the objective masks.
    """
    outputs, masked = predict_masked(module, params, batch, rng, share=predicted)
    return masked.cross_entropy(outputs["logits"])


def sentence_pairs(
    outputs: Outputs, batch: Batch, *, where: Bool[Array, " B"] | bool = True
) -> LossSums:
    """Return the cross-entropy of each sentence pair's class: next sentence, or sentence order.

    Args:
        outputs: contains `row_logits` [B, C].
        batch: contains `label` [B].
        where: the rows to count; True for all.

    Raises:
        ValueError: the batch has no `label`.
    """
    if "label" not in batch:
        raise ValueError(
            "model.head='pretraining' classifies pairs of sentences, and the batch has no labels: "
            "set data.objective to one that makes pairs, or model.head='masked_lm'"
        )
    counted = labels.real_rows(batch) & where
    return labels.classification(outputs["row_logits"], batch["label"], counted)


def predicted_positions(
    weights: Num[Array, "B L"], *, share: float
) -> tuple[Int[Array, "B P"], Float[Array, "B P"]]:
    """Find the positions of each row that have a loss, so that only they get logits.

    A masked language model predicts about 15% of its input (Devlin et al. 2019, section 3.1);
    multiplying the other positions by the embedding table would be wasted work.

    Args:
        weights: the loss weights of the tokens; 0 if a token is not predicted.
        share: the largest share of a row that can have a nonzero weight, in (0, 1].

    Returns:
        P = ceil(share * L) positions of each row, first the weighted positions in order, then
        others as padding; and the weights at these positions. A row with more than P weighted
        positions gets NaN weights, and so a NaN loss, so that no token is dropped silently.

    Raises:
        ValueError: share is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"loss.predicted={share} must lie in (0, 1]")
    length = weights.shape[1]
    count = math.ceil(round(share * length, 6))  # 0.28 * 25 is 7.000000000000001
    index = jax.lax.broadcasted_iota(jnp.int32, weights.shape, 1)
    # A sort rather than top_k: XLA does not partition a top_k over the rows.
    order = jnp.sort(jnp.where(weights != 0, index, index + length), axis=1)
    positions = order[:, :count] % length
    chosen_weights = jnp.take_along_axis(weights.astype(jnp.float32), positions, axis=1)
    fits = jnp.sum(weights != 0, axis=1, keepdims=True) <= count
    return positions, jnp.where(fits, chosen_weights, jnp.nan)
