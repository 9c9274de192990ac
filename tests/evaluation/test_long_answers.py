"""Long answers of Natural Questions; expected values of the released nq_eval.py and its tests."""

import pytest

from data.reading_qa import READING
from t5x_like.evaluation.metrics import METRICS

NONE = "none"
# Of questions with five annotators each, and a prediction; with what nq_eval.py's compute_f1 gives.
QUESTIONS = [
    ([NONE, NONE, NONE, NONE, "2"], "0"),
    ([NONE, "0", "2", NONE, "1"], NONE),
    ([NONE, NONE, "2", NONE, "1"], NONE),
    ([NONE, "1", NONE, "1", NONE], "1"),
    (["0", NONE, "2", NONE, "0"], "0"),
]
F1, PRECISION, RECALL = 0.5714285714285715, 0.6666666666666666, 0.5


def measured(questions):
    targets, predictions = zip(*questions, strict=True)
    found = METRICS["long_answer"](targets, predictions)
    return [found[f"long_answer_{name}"] for name in ("f1", "precision", "recall")]


def test_the_numbers_are_those_of_the_released_script():
    assert measured(QUESTIONS) == pytest.approx([F1, PRECISION, RECALL], rel=1e-12)


def test_two_of_five_annotators_must_have_found_an_answer():
    """The cases of testLongStat in nq_eval_test.py: a prediction for one question."""
    assert measured([(["a", NONE, NONE, NONE, NONE], "a")]) == [0, 0, 0]
    assert measured([(["a", "b", NONE, NONE, NONE], "a")]) == [1, 1, 1]


def test_no_prediction_and_no_answer_leave_nothing_to_divide_by():
    assert measured([([NONE] * 5, NONE)]) == [0, 0, 0]


# The first five are the cases of testShortStat in nq_eval_test.py; with compute_f1's numbers.
SHORT = [
    (["1-3 5-6", "1-3 5-6", NONE, NONE, NONE], "1-3 5-6"),
    (["1-3 5-6", "1-3 5-6", NONE, NONE, NONE], "1-3"),
    (["1-3 5-6", NONE, NONE, NONE, NONE], "1-3 5-6"),
    (["yes", "1-3 5-6", NONE, NONE, NONE], "yes"),
    (["yes", "1-3 5-6", NONE, NONE, NONE], "no"),
    (["2-4", "2-5", "2-4", NONE, "no"], "2-5"),
    (["2-4", "2-5", "2-4", NONE, "no"], NONE),
    ([NONE] * 5, "7-9"),
]
SHORT_NUMBERS = [3 / 6.5, 3 / 7, 0.5]


def test_short_answers_have_the_numbers_of_the_released_script_too():
    longs = [*QUESTIONS, *[([NONE] * 5, NONE)] * 3]
    targets = [
        {"long": long[0], "short": short[0]} for long, short in zip(longs, SHORT, strict=True)
    ]
    predictions = [
        {"long": long[1], "short": short[1]} for long, short in zip(longs, SHORT, strict=True)
    ]
    found = METRICS["long_and_short_answers"](targets, predictions)
    assert [*found] == [*METRICS["long_and_short_answers"].numbers]
    assert [*found.values()] == pytest.approx([F1, PRECISION, RECALL, *SHORT_NUMBERS], rel=1e-12)


def row(**changes):
    tokens = ["<P>", "Ann", "came", "</P>", "<P>", "Bo", "left", "</P>"]
    spans = {"start_token": [0, 1, 4], "end_token": [4, 3, 8], "top_level": [True, False, True]}
    votes = [(0, 4), (4, 8), (-1, -1), (4, 8), (1, 3)]
    return {
        "question": {"text": "who left"},
        "document": {"tokens": {"token": tokens, "is_html": [t[0] == "<" for t in tokens]}},
        "long_answer_candidates": spans,
        "annotations": {
            "long_answer": [{"start_token": start, "end_token": end} for start, end in votes]
        },
        **changes,
    }


def test_a_row_lists_the_candidates_without_html():
    [found] = READING["natural_questions_long"].text_rows(row(), split="validation")
    assert found["inputs"] == r"who left \n [1] Ann came [2] Bo left"
    assert found["targets"] == "[2]"
    assert found["answers"] == ["[1]", "[2]", NONE, "[2]", "within"]


def test_a_labelled_row_has_the_words_of_all_answers():
    shorts = [[(1, 3)], [(5, 6)], [], [(6, 7), (5, 6)], []]
    spans = [
        {"start_token": [a for a, _ in short], "end_token": [b for _, b in short]}
        for short in shorts
    ]
    annotations = row()["annotations"] | {
        "short_answers": spans,
        "yes_no_answer": [-1, 1, -1, -1, 0],
    }
    found = READING["natural_questions_long"].labelled_row(row(annotations=annotations), most=0)
    assert found == {
        "question": "who left",
        "context": ["Ann came", "Bo left"],
        "long_answers": ["0-2", "2-4", NONE, "2-4", "0-2"],
        "short_answers": ["0-2", "yes", NONE, "2-3 3-4", "no"],
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"long_answer_candidates": {"start_token": [0], "end_token": [], "top_level": [True]}},
            r"long_answer_candidates.end_token=\[\] must be a list of 1 values",
        ),
        ({"annotations": {"long_answer": [{"end_token": 3}]}}, "no field 'start_token'"),
        ({"document": {"tokens": {"token": ["a"]}}}, "no field 'document.tokens.is_html'"),
    ],
)
def test_a_bad_row_is_one_error(changes, message):
    with pytest.raises(ValueError, match=message):
        READING["natural_questions_long"].text_rows(row(**changes), split="validation")
