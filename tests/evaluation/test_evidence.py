"""Answers and supporting facts of HotpotQA; expected values of its hotpot_evaluate_v1.py."""

import pytest

from t5x_like.evaluation.metrics import METRICS

NAMES = ["exact_match", "f1", "fact_exact_match", "fact_f1", "joint_exact_match", "joint_f1"]
# (answer and facts, predicted answer and facts), and what the script gives for the question alone.
QUESTIONS = [
    (
        ("Kiefer Sutherland", [["24", 0], ["Ann", 2]]),
        ("the Kiefer Sutherland!", [["Ann", 2], ["24", 0]]),
        [1, 1, 1, 1, 1, 1],
    ),
    (
        ("yes", [["A", 0], ["B", 1]]),
        ("yes", [["A", 0]]),
        [1, 1, 0, 0.6666666666666666, 0, 0.6666666666666666],
    ),
    (
        ("yes", [["A", 0], ["B", 1]]),
        ("yes it is", [["A", 0], ["B", 1]]),
        [0, 0, 1, 1, 0, 0],
    ),
    (
        ("a red old house", [["A", 0], ["B", 1], ["B", 2]]),
        ("old house of Ann", [["A", 0], ["C", 1], ["B", 1], ["B", 1]]),
        [0, 0.5714285714285715, 0, 0.6666666666666666, 0, 0.380952380952381],
    ),
    (("no", [["A", 0]]), ("", []), [0] * 6),
    (("Oslo", [["A", 0]]), ("Oslo", []), [1, 1, 0, 0, 0, 0]),
    (("the", [["A", 0]]), ("The.", [["A", 0]]), [1, 0, 1, 1, 1, 0]),
    (
        ("Oslo, Norway", [["A", 0]]),
        ("Norway Norway", [["A", 0], ["A", 1]]),
        [0, 0.5, 0, 0.6666666666666666, 0, 0.3333333333333333],
    ),
]
OF_ALL = [0.5, 0.5089285714285714, 0.375, 0.625, 0.25, 0.2976190476190476]


def measured(questions):
    pairs = [
        [{"answer": answer, "facts": facts} for answer, facts in question[:2]]
        for question in questions
    ]
    found = METRICS["supporting_facts"](*zip(*pairs, strict=True))
    assert [*found] == NAMES == [*METRICS["supporting_facts"].numbers]
    return [*found.values()]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question[1][0])
def test_a_question_has_the_numbers_of_the_official_script(question):
    assert measured([question]) == pytest.approx(question[2], rel=1e-12)


def test_the_numbers_are_means_over_questions():
    assert measured(QUESTIONS) == pytest.approx(OF_ALL, rel=1e-12)
