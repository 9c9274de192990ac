"""The losses of an encoder's heads for labelled text, the same for every system."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax

from t5x_like.losses import terms
from t5x_like.models.networks.encoder import forward

Batch = Mapping[str, jax.Array]
Loss = Callable[[nn.Module, Any, Batch, jax.Array | None], terms.LossSums]


def _real(batch: Batch) -> jax.Array:
    """The rows of a batch that do not only pad."""
    return batch["encoder_segment_ids"][:, 0] > 0


def classification(
    module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None
) -> terms.LossSums:
    """Of `label` [B], a class for a text or a pair of texts (Devlin et al. 2018, section 4.1)."""
    logits = forward(module, params, batch, rng)["logits"]
    return terms.classification(logits, batch["label"], _real(batch))


def regression(
    module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None
) -> terms.LossSums:
    """Of `value` [B], a number for a text or a pair of texts."""
    predictions = forward(module, params, batch, rng)["logits"][:, 0]
    return terms.regression(predictions, batch["value"], _real(batch))


def tagging(module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None) -> terms.LossSums:
    """Of `encoder_target_tokens` [B, L], tags, where `encoder_loss_weights` is not 0."""
    logits = forward(module, params, batch, rng)["logits"]
    return terms.tagging(logits, batch["encoder_target_tokens"], batch["encoder_loss_weights"])


def question_answering(
    module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None
) -> terms.LossSums:
    """Of `answer` [B, 2], its first and last token; 0, 0 for none (sections 4.2 and 4.3)."""
    outputs = forward(module, params, batch, rng)
    real = batch["encoder_segment_ids"] > 0
    return terms.spans(outputs["start_logits"], outputs["end_logits"], batch["answer"], real)


LOSSES: dict[str, Loss] = {
    "classification": classification,
    "regression": regression,
    "tagging": tagging,
    "question_answering": question_answering,
}
