"""Metrics of heads: what fits classes, numbers, tags and choices, and what does not."""

import pytest

from t5x_like import systems
from t5x_like.evaluation import measures
from t5x_like.evaluation.head_predictions import HeadPredictions
from t5x_like.inference.decoder_predictions import Choices
from t5x_like.inference.encoder_predictions import Classes, Number, Tags


class Head:
    """A predictor that gives the predictions of a list."""

    def __init__(self, kind, predicted, *, labels=()):
        self.prediction = object.__new__(kind)  # without a vocabulary, which nothing here needs
        object.__setattr__(self.prediction, "labels", tuple(labels))
        self.predicted, self.asked = predicted, None

    def __call__(self, items):
        self.asked = items
        return self.predicted


def classes(*shares, labels=("no", "yes")):
    return [
        {
            "prediction": labels[share > 0.5],
            "probabilities": dict(zip(labels, (1 - share, share), strict=True)),
        }
        for share in shares
    ]


ROWS = [{"text_a": "a", "label": label, "group": str(n // 2)} for n, label in enumerate([1, 0, 1])]


def test_classes_are_compared_by_name():
    head = Head(Classes, classes(0.9, 0.8, 0.2), labels=("no", "yes"))
    names = ("accuracy", "f1_binary", "f1_per_class", "roc_auc", "multirc")
    numbers, listed = HeadPredictions(metrics=names, group="group").measure(head, ROWS)
    assert numbers["accuracy"] == pytest.approx(1 / 3)
    assert numbers["f1_binary"] == 0.5
    assert numbers["f1/no"] == 0
    assert numbers["roc_auc"] == 0.5
    assert numbers["multirc_exact_match"] == 0
    assert numbers["accuracy"].interval[0] < 1 / 3
    assert head.asked == [{"text_a": "a"}] * 3
    assert listed == head.predicted


def test_the_positive_class_may_be_the_first():
    head = Head(Classes, classes(0.9, 0.8, 0.2), labels=("no", "yes"))
    measure = HeadPredictions(metrics=("f1_binary", "roc_auc"), positive="no")
    numbers, _ = measure.measure(head, ROWS)
    assert numbers["f1_binary"] == 0
    assert numbers["roc_auc"] == 0.5


@pytest.mark.parametrize(
    ("settings", "labels", "message"),
    [
        ({}, ("a", "b", "c"), "the positive class of two, and the data has 3: a, b, c"),
        ({"positive": "maybe"}, ("no", "yes"), "positive='maybe' does not exist"),
    ],
)
def test_a_positive_class_is_needed_before_anything_is_predicted(settings, labels, message):
    head = Head(Classes, [], labels=labels)
    with pytest.raises(ValueError, match=message):
        HeadPredictions(metrics=("f1_binary",), **settings).measure(head, ROWS)
    assert head.asked is None


def test_each_head_has_its_metrics_by_default():
    numbers, _ = HeadPredictions().measure(
        Head(Number, [{"prediction": 1.0}, {"prediction": 2.0}, {"prediction": 4.0}]),
        [{"text_a": "a", "value": value} for value in (0.0, 1.0, 3.0)],
    )
    assert numbers == {"pearson": pytest.approx(1), "spearman": pytest.approx(1), "examples": 3}
    numbers, _ = HeadPredictions().measure(
        Head(Tags, [{"prediction": ["B-PER", None]}], labels=("O", "B-PER", "I-PER")),
        [{"words": ["Jim", "Henson"], "tags": [1, 2]}],
    )
    assert (numbers["tag_accuracy"], numbers["entity_f1"]) == (0.5, 0)
    numbers, _ = HeadPredictions().measure(
        Head(Choices, [{"prediction": "b", "answer": 1, "probabilities": [0.2, 0.8]}]),
        [{"text_a": "a", "choices": ["a", "b"], "answer": 1}],
    )
    assert numbers == {"accuracy": 1, "constant_accuracy": 1, "examples": 1}


@pytest.mark.parametrize(
    ("head", "settings", "message"),
    [
        (
            "classification",
            {"metrics": ("pearson",)},
            "evaluate.measures.predictions: the metric 'pearson' does not measure classes.",
        ),
        ("regression", {"metrics": ("accuracy",)}, "'accuracy' does not measure numbers."),
        ("tagging", {"metrics": ("f1_macro",)}, "'f1_macro' does not measure tags."),
        ("classification", {"metrics": ("accurracy",)}, "Did you mean 'accuracy'"),
        ("classification", {"metrics": "accuracy"}, "must be a list"),
        ("classification", {"metrics": ("multirc",)}, "group is not set"),
        ("question_answering", {}, "this model predicts answers"),
        ("masked_lm", {}, "this model predicts masked_tokens"),
    ],
)
def test_a_metric_that_does_not_fit_the_head_is_refused_at_once(head, settings, message):
    task = systems.find("bert").task({"head": head})
    with pytest.raises(ValueError, match=message):
        measures.make("predictions", settings, task=task)


def test_squad_needs_answers():
    task = systems.find("bert").task({"head": "classification"})
    with pytest.raises(ValueError, match=r"evaluate\.measures\.squad: the measure squad"):
        measures.make("squad", {}, task=task)
