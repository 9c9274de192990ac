"""The predictions by name: what a system's task declares as its `prediction`."""

from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import systems
from t5x_like.experiment.run import Part
from t5x_like.hf.head_labels import MULTI, REGRESSION
from t5x_like.inference.choices import EncoderChoices
from t5x_like.inference.decoder_predictions import Choices, DecoderClasses, DecoderNumber
from t5x_like.inference.encoder_predictions import (
    Answers,
    Classes,
    MaskedTokens,
    Number,
    Numbers,
    PairClasses,
    SeveralClasses,
    Tags,
)
from t5x_like.inference.knowledge_predictions import (
    KnowledgeAnswers,
    KnowledgeClasses,
    KnowledgeTags,
)
from t5x_like.inference.predictor import Prediction, Predictor
from t5x_like.inference.word_predictions import TextClass, WordTags
from t5x_like.names import check_settings, choose
from t5x_like.pretrained import Pretrained
from t5x_like.vocabularies import Vocabulary

TEXT = "text"  # the prediction of a task that generates: see `inference.text_model`
PREDICTIONS: dict[str, type[Prediction]] = {
    "masked_tokens": MaskedTokens,
    "classes": Classes,
    "pair_classes": PairClasses,
    "number": Number,
    "several_classes": SeveralClasses,
    "numbers": Numbers,
    "tags": Tags,
    "answers": Answers,
    "encoder_choices": EncoderChoices,
    "decoder_classes": DecoderClasses,
    "decoder_number": DecoderNumber,
    "choices": Choices,
    "text_class": TextClass,
    "word_tags": WordTags,
    "knowledge_classes": KnowledgeClasses,
    "knowledge_tags": KnowledgeTags,
    "knowledge_answers": KnowledgeAnswers,
}


def name_of(pretrained: Pretrained) -> str:
    """What a model predicts: TEXT, or a name in PREDICTIONS.

    Raises:
        ValueError: its head has no task, or its task predicts nothing by itself.
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
    """Make the prediction of this name.

    Args:
        labels: names of classes or tags; without names their numbers are predicted.
        length: tokens a row.
        settings: the other fields of its class.

    Raises:
        ValueError: no prediction has this name, or it has no such setting, or a vocabulary without
            the special tokens that it needs.
    """
    kind = choose("prediction", name, PREDICTIONS)
    check_settings("predict", kind, settings, given=("vocabulary", "labels", "length"))
    return kind(vocabulary=vocabulary, labels=labels, length=length, **settings)


def _of_problem(name: str, pretrained: Pretrained) -> str:
    """The prediction of a folder whose head has another problem than its name says."""
    problem = pretrained.head_labels.problem
    if problem == MULTI and name in ("classes", "number"):
        return "several_classes"
    return "numbers" if problem == REGRESSION and name == "classes" else name


def outputs_of(labels: Sequence[str], pretrained: Pretrained) -> list[int] | None:
    """For each label of the data the number of the model's output that has its name.

    None where the data has no labels, the model's have the same order, or other names.
    """
    theirs = pretrained.head_labels.names
    if tuple(labels) == theirs or sorted(labels) != sorted(theirs):
        return None
    return [theirs.index(name) for name in labels]


def build(pretrained: Pretrained, part: Part) -> Predictor:
    """The predictor of a task of a run and its model.

    Raises:
        ValueError: as `name_of` and `make`; or a vocabulary that does not exist.
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
