"""The registry of predictions, by the names that a system's tasks declare (`Task.prediction`)."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import systems, vocabularies
from t5x_like.experiment.run import Part
from t5x_like.hf.architectures import MULTI, REGRESSION
from t5x_like.inference.decoder_predictions import Choices, DecoderClasses, DecoderNumber
from t5x_like.inference.document_answers import LongAnswers, SupportingFacts
from t5x_like.inference.encoder_predictions import (
    AnswerPrediction,
    Candidates,
    ChainedWordTags,
    Classes,
    EncoderChoices,
    KnowledgeAnswers,
    KnowledgeClasses,
    KnowledgeTags,
    MaskFilling,
    Number,
    Numbers,
    PairClasses,
    SeveralClasses,
    Tags,
    TextClass,
    WordAnswers,
    WordTags,
)
from t5x_like.inference.predictor import Prediction, Predictor
from t5x_like.names import check_settings, choose
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.vocabularies import Vocabulary

_LONGEST = 512  # tokens that a classifier reads of a text

TEXT = "text"  # of a task that generates text, see `inference.text_model`
PREDICTIONS: dict[str, type[Prediction]] = {
    "masked_tokens": MaskFilling,
    "classes": Classes,
    "pair_classes": PairClasses,
    "number": Number,
    "several_classes": SeveralClasses,
    "numbers": Numbers,
    "tags": Tags,
    "answers": AnswerPrediction,
    "encoder_choices": EncoderChoices,
    "candidates": Candidates,
    "supporting_facts": SupportingFacts,
    "long_answers": LongAnswers,
    "decoder_classes": DecoderClasses,
    "decoder_number": DecoderNumber,
    "choices": Choices,
    "text_class": TextClass,
    "word_answers": WordAnswers,
    "word_tags": WordTags,
    "chained_word_tags": ChainedWordTags,
    "knowledge_classes": KnowledgeClasses,
    "knowledge_tags": KnowledgeTags,
    "knowledge_answers": KnowledgeAnswers,
}


def name_of(pretrained: Pretrained) -> str:
    """Return the kind of a model's predictions: TEXT, or a name in PREDICTIONS.

    Raises:
        ValueError: its head has no task, or the task declares no prediction.
    """
    name = systems.find(pretrained.system).task(pretrained.config).prediction
    if not name:
        head = pretrained.config.get("head", "")
        raise ValueError(
            f"a {pretrained.system} with model.head={head!r} predicts nothing by itself: choose a "
            "folder of a model with another head, or fine-tune it"
        )
    return name


def make(
    name: str,
    *,
    vocabulary: Vocabulary,
    labels: Sequence[str],
    length: int,
    settings: Mapping[str, Any],
) -> Prediction:
    """Make the prediction with this name.

    Args:
        labels: names of classes or tags; without names their numbers are predicted.
        length: tokens per row.
        settings: the other fields of its class.

    Raises:
        ValueError: the name or a setting does not exist, or the vocabulary lacks a special token
            that the prediction needs.
    """
    kind = choose("prediction", name, PREDICTIONS)
    check_settings("predict", kind, settings, given=("vocabulary", "labels", "length"))
    return kind(vocabulary=vocabulary, labels=labels, length=length, **settings)


def _of_problem(name: str, pretrained: Pretrained) -> str:
    """Return the prediction for the folder's `problem_type`, which may differ from the head's."""
    problem = pretrained.head_labels.problem
    if problem == MULTI and name in ("classes", "number"):
        return "several_classes"
    return "numbers" if problem == REGRESSION and name == "classes" else name


def outputs_of(labels: Sequence[str], pretrained: Pretrained) -> list[int] | None:
    """Return, for each label of the data, the index of the model's output with its name.

    None if the data has no labels, or the model's labels have the same order or other names.
    """
    theirs = pretrained.head_labels.names
    if tuple(labels) == theirs or sorted(labels) != sorted(theirs):
        return None
    return [theirs.index(name) for name in labels]


def build(pretrained: Pretrained, part: Part) -> Predictor:
    """Build the predictor of a task with a model.

    Raises:
        ValueError: the vocabulary does not exist; see also `name_of` and `make`.
    """
    name = name_of(pretrained)
    if name == TEXT:
        raise ValueError(f"this {pretrained.system} generates text, and has no labels to predict")
    name = _of_problem(name, pretrained)
    kind = choose("prediction", name, PREDICTIONS)
    text = part.text
    labels = (text.labels or pretrained.head_labels.names) if kind.has_labels else ()
    prediction = make(
        name,
        vocabulary=text.vocabulary,
        labels=labels,
        length=part.data.lengths["inputs"],
        settings={**kind.settings_in(text), **part.predict},
    )
    return Predictor(
        pretrained,
        prediction,
        batch_size=part.data.batch_size,
        order=outputs_of(labels, pretrained),
    )


def classifier(folder: str | os.PathLike[str], *, label: str, batch_size: int) -> Predictor:
    """Load an encoder that classifies texts; it predicts `probabilities` of its labels.

    Args:
        folder: a run, or a folder or model of the hub in Hugging Face's format, with names of
            labels; the labels may exclude each other or not.
        label: a label that it must have.

    Raises:
        ValueError: the folder does not exist, or has another model or no such label.
    """
    model = from_pretrained(folder)
    name = _of_problem(name_of(model), model)
    if name not in ("classes", "several_classes"):
        raise ValueError(
            f"{folder} predicts {name}: give an encoder with model.head=classification"
        )
    names = model.head_labels.names
    choose(f"the label of {folder}", label, dict.fromkeys(names))
    prediction = make(
        name,
        vocabulary=vocabularies.load(model.vocabulary),
        labels=names,
        length=min(model.config.get("positions") or _LONGEST, _LONGEST),
        settings={},
    )
    return Predictor(model, prediction, batch_size=batch_size)
