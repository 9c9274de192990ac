"""Metrics: worked examples, the scripts that they follow, and the contract of seqio."""

import dataclasses
import math

import numpy as np
import pytest
import seqio
import sklearn.metrics
import tensorflow as tf

from t5x_like.evaluation.generated_text import vote
from t5x_like.evaluation.metrics import METRICS, directions
from t5x_like.evaluation.metrics.tagged_words import entities


def measured(name, targets, outputs):
    return METRICS[name](targets, outputs)


def test_every_metric_is_one_that_seqio_takes():
    task = seqio.Task(
        "metrics_contract",
        source=seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"]),
        output_features={"targets": seqio.Feature(seqio.PassThroughVocabulary(8), dtype=tf.int32)},
        preprocessors=[],
        metric_fns=list(METRICS.values()),
    )
    by_score = [metric for metric in METRICS.values() if metric.by_score]
    assert task.score_metric_fns == by_score
    assert len(task.predict_metric_fns) == len(METRICS) - len(by_score)
    assert all(isinstance(value, float) for value in measured("f1", ["a b"], ["a"]).values())


def test_accuracy_takes_any_of_several_right_values():
    assert measured("accuracy", ["a", ["b", "c"], 3], ["a", "c", 4]) == {
        "accuracy": pytest.approx(2 / 3)
    }


# Of 10 examples: 4 true positives, 1 false negative, 2 false positives, 3 true negatives.
RIGHT = ["yes"] * 5 + ["no"] * 5
FOUND = ["yes"] * 4 + ["no"] + ["yes"] * 2 + ["no"] * 3


def test_two_classes_by_hand():
    matthews = (4 * 3 - 2 * 1) / math.sqrt(6 * 5 * 5 * 4)
    assert measured("matthews", RIGHT, FOUND)["matthews"] == pytest.approx(matthews)
    yes, no = 8 / (8 + 3), 6 / (6 + 3)
    assert measured("f1_per_class", RIGHT, FOUND) == {
        "f1/no": pytest.approx(no),
        "f1/yes": pytest.approx(yes),
    }
    assert measured("f1_macro", RIGHT, FOUND)["f1_macro"] == pytest.approx((yes + no) / 2)
    assert measured("f1_micro", RIGHT, FOUND)["f1_micro"] == pytest.approx(0.7)
    numbers = [[int(one == "yes") for one in own] for own in (RIGHT, FOUND)]
    assert measured("f1_binary", *numbers)["f1_binary"] == pytest.approx(yes)


def test_what_is_no_class_is_wrong_and_no_class_of_its_own():
    found = ["yes", None, None, "yes", "yes", None, "no", "no", "no", "no"]
    classes = measured("f1_per_class", RIGHT, found)
    assert classes == {"f1/no": pytest.approx(8 / 9), "f1/yes": pytest.approx(6 / 8)}
    assert measured("f1_macro", RIGHT, found)["f1_macro"] == pytest.approx((8 / 9 + 6 / 8) / 2)
    # None counts as the other class than the right one: 3 true, 1 false positive, 2 false negative.
    numbers = [None if one is None else int(one == "yes") for one in found]
    right = [int(one == "yes") for one in RIGHT]
    for invalid in (None, -1, 2):  # T5's class of no label is -1
        given = [invalid if one is None else one for one in numbers]
        assert measured("f1_binary", right, given)["f1_binary"] == pytest.approx(6 / (6 + 3))
    assert measured("accuracy", RIGHT, found)["accuracy"] == 0.7


def test_classes_and_scores_are_measured_as_by_scikit_learn():
    random = np.random.default_rng(0)
    for classes in (2, 3, 5):
        targets, found = random.integers(classes, size=[2, 40]).tolist()
        expected = {
            "matthews": sklearn.metrics.matthews_corrcoef(targets, found),
            "f1_macro": sklearn.metrics.f1_score(targets, found, average="macro"),
            "f1_micro": sklearn.metrics.f1_score(targets, found, average="micro"),
        }
        for name, value in expected.items():
            assert measured(name, targets, found)[name] == pytest.approx(value)
        each = sklearn.metrics.f1_score(targets, found, average=None)
        assert list(measured("f1_per_class", targets, found).values()) == pytest.approx(each)
        if classes == 2:
            value = sklearn.metrics.f1_score(targets, found)
            assert measured("f1_binary", targets, found)["f1_binary"] == pytest.approx(value)
            scores = random.integers(4, size=[40, 2])  # with ties
            value = sklearn.metrics.roc_auc_score(targets, scores[:, 1] - scores[:, 0])
            assert measured("roc_auc", targets, scores)["roc_auc"] == pytest.approx(value)


def test_one_class_alone_has_no_correlation():
    assert measured("matthews", ["a", "a"], ["a", "a"])["matthews"] == 0


def test_scores_of_classes():
    scores = [[0.1, 0.9], [0.6, 0.4], [0.3, 0.7], [0.8, 0.2]]
    targets = [1, 1, 0, 0]
    # Of the 4 pairs of a positive and a negative one, in 3 the positive one scores higher.
    assert measured("roc_auc", targets, scores)["roc_auc"] == 0.75
    assert measured("rank_accuracy", [[0, 1], 1, 0, 0], scores)["rank_accuracy"] == 0.5
    # Ranks 1 (of two right ones), 2, 2 and 1.
    found = measured("mean_reciprocal_rank", [[0, 1], 1, 0, 0], scores)
    assert found == {"mean_reciprocal_rank": 0.75}
    ties = measured("mean_reciprocal_rank", [2], [[0.0] * 4])
    assert ties == {"mean_reciprocal_rank": 1 / 2.5}
    assert math.isnan(measured("roc_auc", [1, 1], scores[:2])["roc_auc"])
    with pytest.raises(ValueError, match="roc_auc needs the scores of two classes, not 3"):
        measured("roc_auc", [1], [[0.1, 0.2, 0.7]])


def test_numbers_by_hand():
    targets, found = [1.0, 2.0, 3.0, 4.0], [10.0, 30.0, 20.0, 500.0]
    assert measured("spearman", targets, found)["spearman"] == pytest.approx(1 - 6 * 2 / (4 * 15))
    x, y = (np.array(one) - np.mean(one) for one in (targets, found))
    pearson = (x @ y) / math.sqrt((x @ x) * (y @ y))
    assert measured("pearson", targets, found)["pearson"] == pytest.approx(pearson)
    assert measured("mean_squared_error", [1, 2], [2, 5])["mean_squared_error"] == 5
    assert measured("mean_absolute_error", [1, 2], [2, 5])["mean_absolute_error"] == 2
    assert math.isnan(measured("pearson", targets, [1.0] * 4)["pearson"])


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-PER I-PER O B-LOC", [(0, 1, "PER"), (3, 3, "LOC")]),
        ("B-PER B-PER", [(0, 0, "PER"), (1, 1, "PER")]),
        ("I-PER I-PER O I-PER", [(0, 1, "PER"), (3, 3, "PER")]),  # IOB1
        ("I-PER I-LOC", [(0, 0, "PER"), (1, 1, "LOC")]),
        ("B-PER I-LOC I-LOC", [(0, 0, "PER"), (1, 2, "LOC")]),
        ("B-PER I-PER E-PER S-LOC", [(0, 2, "PER"), (3, 3, "LOC")]),  # IOBES
        ("S-PER S-PER O E-LOC", [(0, 0, "PER"), (1, 1, "PER"), (3, 3, "LOC")]),
        ("E-PER E-PER", [(0, 0, "PER"), (1, 1, "PER")]),
        ("E-PER I-PER", [(0, 0, "PER"), (1, 1, "PER")]),
        ("O O", []),
        ("B-PER-X I-PER-X", [(0, 1, "PER-X")]),
        ("B I O", [(0, 1, "")]),
    ],
)
def test_entities_begin_and_end_as_for_conlleval(tags, expected):
    assert entities(tags.split()) == expected


def test_entity_f1_by_hand():
    targets = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O", "O"]]
    found = [["B-PER", "I-PER", "O", "B-ORG"], ["B-ORG", "I-ORG", None]]
    values = measured("entity_f1", targets, found)
    assert values == {  # one of three is right: the span of another is too long, its type another's
        "entity_precision": pytest.approx(1 / 3),
        "entity_recall": pytest.approx(1 / 3),
        "entity_f1": pytest.approx(1 / 3),
        "entity_f1/LOC": 0,
        "entity_f1/ORG": 0,
        "entity_f1/PER": 1,
    }
    assert measured("tag_accuracy", targets, found)["tag_accuracy"] == pytest.approx(4 / 7)
    assert measured("entity_f1", [["O"]], [["O"]])["entity_f1"] == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exact_match", 0.0),  # "its" is one word for SQuAD, "it s" two for TriviaQA
        ("trivia_qa_exact_match", 1.0),
        ("f1", 2 * 1 / 5),
        ("trivia_qa_f1", 1.0),
    ],
)
def test_answers_are_normalized_as_in_the_script_of_each_benchmark(name, expected):
    assert measured(name, ["it s mine"], ["It's the mine!"])[name] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["exact_match", "f1", "rouge_1", "bleu"])
def test_the_best_of_several_right_texts_counts(name):
    answers = [["the Beatles", "Fab Four of Liverpool city"], "a dog and a cat sat"]
    predictions = ["Fab Four of Liverpool city", "a dog and a cat sat"]
    assert measured(name, answers, predictions)[name] == pytest.approx(100 if name == "bleu" else 1)
    worse = measured(name, ["the Beatles", answers[1]], predictions)[name]
    assert worse < (100 if name == "bleu" else 1)


SUMMARY = "The cat was found under the bed."


@pytest.mark.parametrize(
    ("name", "reference", "expected"),
    [
        ("rouge_1", "the cat was under the bed", 2 * 6 / 13),
        ("rouge_2", "the cat was under the bed", 2 * 4 / 11),
        ("rouge_l", "the cat was under the bed", 2 * 6 / 13),
        ("rouge_l", "under the bed the cat was", 2 * 3 / 13),
        ("rouge_1", "cats finding beds", 2 * 2 / 10),  # Porter: cat, find, bed; found stays
        ("rouge_1", "a dog", 0.0),
        ("rouge_2", "bed", 0.0),
        ("rouge_l", "", 0.0),
    ],
)
def test_rouge_is_what_a_count_by_hand_gives(name, reference, expected):
    assert measured(name, [reference], [SUMMARY])[name] == pytest.approx(expected)
    assert measured(name, [SUMMARY], [reference])[name] == pytest.approx(expected)


def test_rouge_lsum_takes_sentences_in_any_order():
    texts = ["The cat sat. A dog ran away.", "A dog ran away. The cat sat."]
    assert measured("rouge_lsum", texts[:1], texts[1:])["rouge_lsum"] == 1
    assert measured("rouge_l", texts[:1], texts[1:])["rouge_l"] < 1


def test_multirc_by_hand():
    targets = [
        {"group": group, "value": value}
        for group, value in [("a", 1), ("a", 0), ("b", 1), ("b", 1), ("c", 0)]
    ]
    found = [{"value": 1}, {"value": 0}, {"value": 1}, {"value": 0}, {"value": None}]
    # Question a alone is right; 2 true positives, 1 false negative, and None is a false positive.
    assert METRICS["multirc"](targets, found) == {
        "multirc_exact_match": pytest.approx(1 / 3),
        "multirc_f1a": pytest.approx(4 / 6),
    }


def test_record_counts_a_query_once_with_its_best_answer():
    targets = [
        {"group": 1, "value": ["Paris", "the city of Paris"]},
        {"group": 1, "value": ["Paris", "the city of Paris"]},
        {"group": 2, "value": ["Rome"]},
    ]
    assert METRICS["record"](targets, ["city of Paris", "London", "old Rome"]) == {
        "record_exact_match": 0.5,
        "record_f1": pytest.approx((1 + 2 / 3) / 2),
    }


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="there are 1 targets and 2 predictions"):
        measured("accuracy", ["a"], ["a", "b"])
    with pytest.raises(ValueError, match="no example to measure"):
        measured("accuracy", [], [])


def test_metrics_know_which_values_are_better():
    found = directions(["accuracy", "mean_squared_error", "entity_f1", "f1_per_class"])
    assert found["mean_squared_error"]
    assert not any(value for name, value in found.items() if name != "mean_squared_error")
    assert {"entity_f1/*", "f1/*", "entity_recall"} <= found.keys()


def test_a_referent_is_right_where_it_should_be_and_only_there():
    pairs = [
        ("bunny", "the fuzzy bunny", "True", 1),  # the words of one are among those of the other
        ("My fuzzy bunny ", "bunny", "True", 1),
        ("Bob's hat", "Bob", "True", 0),  # an apostrophe on one side alone
        ("Bob", "Ann", "True", 0),
        ("Bob", "Ann", "False", 1),
        ("ann", "Ann", "False", 0),
        ("", "Ann", "True", 0),
    ]
    for text, noun, label, right in pairs:
        target = {"group": label, "value": noun}
        assert METRICS["referent"]([target], [text]) == {"referent": right}


@pytest.mark.parametrize(
    ("name", "targets", "expected"),
    [
        ("accuracy", ["a", "b", "a", "a"], 3 / 4),
        ("accuracy", [["a", "c"], "b", "a", "c"], 2 / 4),  # several right answers
        ("f1_macro", ["a", "b", "a", "a"], (6 / 7 + 0) / 2),  # of a precision 3/4, recall 1
        ("f1_micro", ["a", "b", "a", "a"], 3 / 4),
        ("tag_accuracy", [["O", "B-X"], ["O", "O"]], 3 / 4),
    ],
)
def test_numbers_of_a_constant_by_hand(name, targets, expected):
    assert METRICS[name].of_constants(targets) == {f"constant_{name}": pytest.approx(expected)}


@pytest.mark.parametrize("name", ["accuracy", "f1_macro", "f1_micro"])
def test_the_best_constant_is_scikit_learn_s(name):
    """`DummyClassifier(strategy="most_frequent")`."""
    from sklearn import dummy, metrics

    targets = list("abacabba")
    constant = dummy.DummyClassifier(strategy="most_frequent").fit(targets, targets)
    found = constant.predict(targets)
    expected = {
        "accuracy": metrics.accuracy_score(targets, found),
        "f1_macro": metrics.f1_score(targets, found, average="macro"),
        "f1_micro": metrics.f1_score(targets, found, average="micro"),
    }
    assert METRICS[name].of_constants(targets)[f"constant_{name}"] == pytest.approx(expected[name])


def test_f1_of_a_rare_class_is_largest_where_all_is_positive():
    metric = dataclasses.replace(METRICS["f1_binary"], positive="yes")
    # By hand: a precision of 1/4 and a recall of 1.
    assert metric.of_constants(["no", "yes", "no", "no"]) == {
        "constant_f1_binary": pytest.approx(2 / 5)
    }


def test_metrics_that_read_no_classes_have_no_constant():
    assert METRICS["pearson"].of_constants([1.0, 2.0]) == {}
    assert METRICS["matthews"].of_constants(["a", "b"]) == {}


def test_the_best_constant_answer_of_texts_and_of_samples():
    """By hand: "Paris" answers three of four questions, "2" two of three."""
    targets = ["the Paris", ["Lyon", "paris!"], ["Paris"], "Lyon"]
    for name in ("exact_match", "trivia_qa_exact_match"):
        assert METRICS[name].of_constants(targets) == {f"constant_{name}": 0.75}
    assert METRICS["exact_match"].of_constants([[], "a b"]) == {"constant_exact_match": 0.5}
    answers = [["1 + 1 = 2"], ["The answer is 2."], ["#### 3"]]
    found = vote(answers, ["2"] * 3, [["2"]] * 3, [{}, {}, {}])
    assert {name: value for name, value in found.items() if name.startswith("constant_")} == {
        f"constant_{name}_accuracy": pytest.approx(2 / 3)
        for name in ("majority", "sample", "greedy")
    }


@pytest.mark.parametrize("name", ["rouge_1", "rouge_lsum", "bleu", "meteor", "nist"])
def test_a_text_without_a_right_text_is_one_line(name):
    message = rf"^{name}: the list of right texts of example 1 is empty$"
    with pytest.raises(ValueError, match=message):
        METRICS[name]([["a cat"], [], "a dog"], ["a cat", "a", "a dog"])
