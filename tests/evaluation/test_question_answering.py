"""SQuAD's measures: worked examples, windows joined, the best threshold against all of them."""

import numpy as np
import pytest

from t5x_like.decoding.spans import Answer, join
from t5x_like.evaluation.head_predictions import rates
from t5x_like.evaluation.metrics.texts import exact_match, f1


@pytest.mark.parametrize(
    ("predicted", "answers", "exact", "overlap"),
    [
        ("The Panthers!", ["panthers"], 1, 1),  # case, article and punctuation count for nothing
        ("a theatre", ["The theatre", "an opera"], 1, 1),  # the best of the answers
        ("Santa Clara, California", ["Santa Clara"], 0, 0.8),  # 2 of 3 words, and 2 of 2
        ("clara santa", ["Santa Clara"], 0, 1),
        ("cat cat", ["cat dog"], 0, 0.5),  # a word counts as often as both have it
        ("dog", ["cat"], 0, 0),
        ("", [], 1, 1),
        ("dog", [], 0, 0),
        ("", ["dog"], 0, 0),
    ],
)
def test_worked_examples(predicted, answers, exact, overlap):
    assert exact_match(predicted, answers) == exact
    assert f1(predicted, answers) == pytest.approx(overlap)


def test_of_parts_the_best_answer_counts_and_the_least_sign_of_none():
    answer = join([("red", 2.0, 5.0), ("blue", 6.0, 4.0), ("green", 1.0, 7.0)])
    assert answer == Answer("blue", null_margin=-2.0)
    assert answer.under(0.0) == "blue"
    assert answer.under(-2.5) == ""


def test_a_threshold_of_none_always_answers():
    answers = [Answer("a b", 9.0), Answer("cat", 9.0)]
    found = rates(answers, [["b"], ["cat"]], threshold=None)
    assert found == {"exact_match": 1.0, "f1": 1.0}
    assert rates(answers, [["b"], ["cat"]], threshold=0.0)["exact_match"] == 0


def test_right_answers_without_a_word_do_not_count_beside_others():
    """evaluate-v2.0.py leaves them out: a model that gives no answer is wrong."""
    found = rates([Answer("x", 5.0)], [["does not", "|"]], threshold=0.0)
    assert found == {"exact_match": 0.0, "f1": 0.0}
    only = rates([Answer("x", 5.0)], [["|"]], threshold=0.0)
    assert (only["exact_match"], only["f1"]) == (1.0, 1.0)


def test_the_best_threshold_is_the_best_of_all():
    random = np.random.default_rng(0)
    for _ in range(50):
        margins = random.integers(-3, 4, size=12).astype(float)  # with ties
        words = random.choice(["cat", "cat dog", "dog"], size=12)
        references = [["cat"] if there else [] for there in random.random(12) < 0.6]
        references[0] = []
        answers = [Answer(str(w), m) for w, m in zip(words, margins, strict=True)]
        found = rates(answers, references, threshold=0.0)
        every = {
            t: rates(answers, references, threshold=t)["f1"] for t in np.arange(-4.5, 4.5, 0.5)
        }
        assert found["best_f1"] == pytest.approx(max(every.values()))
        assert rates(answers, references, threshold=found["best_threshold"])["f1"] == pytest.approx(
            found["best_f1"]
        )


def test_no_question_is_an_error():
    with pytest.raises(ValueError, match="no question"):
        rates([], [], threshold=None)
