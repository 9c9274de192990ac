"""The losses of an encoder's heads for labelled text, the same for every system."""

from typing import Any

import flax.linen as nn
import jax

from t5x_like.losses import labels
from t5x_like.losses.forward import forward
from t5x_like.losses.sums import LossSums
from t5x_like.models.types import Batch


def classification(module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None) -> LossSums:
    """The class `label` [B] of a text or a pair of texts (Devlin et al. 2018, section 4.1)."""
    logits = forward(module, params, batch, rng)["logits"]
    return labels.classification(logits, batch["label"], labels.real_rows(batch))


def regression(module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None) -> LossSums:
    """The number `value` [B] of a text or a pair of texts."""
    predictions = forward(module, params, batch, rng)["logits"][:, 0]
    return labels.regression(predictions, batch["value"], labels.real_rows(batch))


def tagging(module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None) -> LossSums:
    """The tags `encoder_target_tokens` [B, L], where `encoder_loss_weights` is not 0."""
    logits = forward(module, params, batch, rng)["logits"]
    return labels.tagging(logits, batch["encoder_target_tokens"], batch["encoder_loss_weights"])


def question_answering(
    module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None
) -> LossSums:
    """The first and last token of `answer` [B, 2]; 0, 0 for none (sections 4.2 and 4.3)."""
    outputs = forward(module, params, batch, rng)
    real = batch["encoder_segment_ids"] > 0
    return labels.spans(outputs["start_logits"], outputs["end_logits"], batch["answer"], real)
