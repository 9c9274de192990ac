"""The losses of an encoder's heads for labelled text, which all systems share."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import flax.linen as nn
import jax

from t5x_like.losses import labels
from t5x_like.losses.sums import LossSums, forward
from t5x_like.nn.compute import Batch, Outputs
from t5x_like.nn.linear_chain import Chain


def classification(outputs: Outputs, batch: Batch) -> LossSums:
    """Return the loss on the class `label` [B] of each row (Devlin et al. 2018, section 4.1)."""
    return labels.classification(outputs["logits"], batch["label"], labels.real_rows(batch))


def multiple_choice(outputs: Outputs, batch: Batch) -> LossSums:
    """Return the loss on the index `label` [B] of the right row among an example's C (4.4)."""
    real = batch["encoder_segment_ids"][:, 0, 0] > 0
    return labels.classification(outputs["logits"], batch["label"], real)


def regression(outputs: Outputs, batch: Batch) -> LossSums:
    """Return the loss on the number `value` [B] of each row."""
    return labels.regression(outputs["logits"][:, 0], batch["value"], labels.real_rows(batch))


def tagging(outputs: Outputs, batch: Batch) -> LossSums:
    """Return the loss on the tags `encoder_target_tokens` [B, L], by `encoder_loss_weights`."""
    tags, weights = batch["encoder_target_tokens"], batch["encoder_loss_weights"]
    return labels.tagging(outputs["logits"], tags, weights)


def chained_tagging(outputs: Outputs, batch: Batch) -> LossSums:
    """Return the loss on the sequences of tags, by `encoder_loss_weights` of 0 and 1."""
    counts = batch["encoder_loss_weights"] > 0
    tags, chain = batch["encoder_target_tokens"], cast(Chain, outputs["chain"])
    return labels.chained_tagging(chain, outputs["logits"], tags, counts)


def question_answering(outputs: Outputs, batch: Batch) -> LossSums:
    """Return the loss on the span `answer` [B, 2]; (0, 0) if there is no answer (4.2 and 4.3)."""
    real = batch["encoder_segment_ids"] > 0
    return labels.spans(outputs["start_logits"], outputs["end_logits"], batch["answer"], real)


# {head: its loss, from the outputs of the head and the labels of the batch}
OF_OUTPUTS: Mapping[str, Callable[[Outputs, Batch], LossSums]] = {
    "classification": classification,
    "multiple_choice": multiple_choice,
    "regression": regression,
    "tagging": tagging,
    "chained_tagging": chained_tagging,
    "question_answering": question_answering,
}

# {head: the field of a batch with what it predicts, and its name}
_LABELS = {
    "classification": ("label", "rows with a class"),
    "multiple_choice": ("label", "rows with several choices"),
    "regression": ("value", "rows with a number"),
    "tagging": ("encoder_loss_weights", "tags"),
    "chained_tagging": ("encoder_loss_weights", "tags"),
    "question_answering": ("answer", "answers in the text"),
}


def loss(
    head: str, module: nn.Module, params: Any, batch: Batch, rng: jax.Array | None
) -> LossSums:
    """Return the loss of a head in `OF_OUTPUTS`; `rng` is the dropout key, None in evaluation.

    Raises:
        ValueError: the batch lacks what the head predicts.
    """
    field, labels_of_head = _LABELS[head]
    single = batch["encoder_segment_ids"].ndim == 2
    if field not in batch or (head == "multiple_choice" and single):
        raise ValueError(
            f"model.head={head!r} needs {labels_of_head}, which the examples do not have: set "
            "data.objective and model.head so that they fit"
        )
    return OF_OUTPUTS[head](forward(module, params, batch, rng), batch)
