"""ROUGE by hand."""

import pytest

from t5x_like.evaluation import rouge

SUMMARY = "The cat was found under the bed."


@pytest.mark.parametrize(
    ("measure", "reference", "expected"),
    [
        (rouge.rouge_1, "the cat was under the bed", 2 * 6 / 13),
        (rouge.rouge_2, "the cat was under the bed", 2 * 4 / 11),
        (rouge.rouge_l, "the cat was under the bed", 2 * 6 / 13),
        (rouge.rouge_l, "under the bed the cat was", 2 * 3 / 13),
        (rouge.rouge_1, "a dog", 0.0),
        (rouge.rouge_2, "bed", 0.0),
        (rouge.rouge_l, "", 0.0),
    ],
)
def test_the_measures_are_what_a_count_by_hand_gives(measure, reference, expected):
    assert measure(SUMMARY, [reference]) == pytest.approx(expected)
    assert measure(reference, [SUMMARY]) == pytest.approx(expected)


def test_the_best_reference_counts():
    assert rouge.rouge_1(SUMMARY, ["a dog", SUMMARY]) == 1.0
