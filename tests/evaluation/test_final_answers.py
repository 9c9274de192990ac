"""Final answers of chains of thought: how they are read, their accuracy, and majority votes."""

import collections
import re

import pytest

from t5x_like.evaluation.metrics import METRICS
from t5x_like.evaluation.metrics.final_answers import final_answer, majority, self_consistency

# Shortened: a chain in the prompt of Wei et al. 2022, table 20, another with prices, GSM8K's first
# row, and a row of data/languages/arithmetic.py.
WEI = "Jason started with 20 lollipops. So he gave Denny 20 - 12 = 8. The answer is 8."
OLIVIA = "She has $23. 5 bagels for $3 each will be 5 x 3 = 15 dollars. 23 - 15 is 8. It is $8."
GSM8K = "She sold 48/2 = <<48/2=24>>24 clips in May.\nAltogether 48+24 = <<48+24=72>>72.\n#### 72"
SUMS = "4 then 7 then 4 then 9 so 9 ."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WEI, "8"),
        (OLIVIA, "8"),
        (GSM8K, "72"),
        (SUMS, "9"),
        ("9 .", "9"),
        ("#### 1,234,567", "1234567"),
        ("The answer is 5. Q: Next? A: The answer is 7.", "5"),
        ("the answer is: $-1,000.50.\n3 left", "-1000.50"),
        ("It was 16-3", "3"),
        ("x = -3", "-3"),
        ("Wait for 3 ... 4...", "4"),
        ("half of it is .5", ".5"),
        ("Sofas are 2 by 2. So the answer is (E).", "(e)"),
        ("The answer is June 8.\nQ: 9", "june 8"),
        ("Of 3 and 4 the last. The answer is", "4"),
        ("#### \nthe answer is 6", "6"),
        ("Yes.", "yes"),
        (" . ", ""),
    ],
)
def test_the_answer_is_after_a_marker_or_the_last_number(text, expected):
    assert final_answer(text) == expected


# Filters and normalization of lm-eval 0.4.13, tasks/gsm8k/gsm8k.yaml and gsm8k-cot.yaml.
STRICT = (r"#### (\-?[0-9\.\,]+)", r"The answer is (\-?[0-9\.\,]+).")
FLEXIBLE = r"(-?[$0-9.,]{2,})|(-?[0-9]+)"
IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")


def lm_eval_answer(text):
    """As filters/extraction.py and api/metrics.py: the first strict match, or the last number."""
    strict = [match for pattern in STRICT for match in re.findall(pattern, text)]
    flexible = [next(filter(None, groups)) for groups in re.findall(FLEXIBLE, text)]
    answer = strict[0] if strict else flexible[-1]
    for pattern in IGNORED:
        answer = re.sub(pattern, "", answer.strip())
    return answer


@pytest.mark.parametrize("text", [WEI, OLIVIA, GSM8K, SUMS, "The answer is -1,200.", "$3 or $4.50"])
def test_numbers_are_those_of_the_harness(text):
    assert final_answer(text) == lm_eval_answer(text)


def test_the_metric_compares_final_answers_and_knows_the_base_rate():
    targets = [GSM8K, "8", ["9 .", "nine"], "8"]
    texts = ["48+24 is 72", WEI, "so nine", "8 and 9"]
    found = METRICS["final_answer"](targets, texts)
    assert found == {"final_answer": pytest.approx(2 / 4)}  # "so nine" is not "nine"
    assert METRICS["final_answer"].of_constants(targets) == {"constant_final_answer": 0.5}


def test_a_majority_is_the_most_frequent_answer_and_of_equals_the_first():
    """MajorityVoteFilter of lm-eval is `Counter(answers).most_common(1)`."""
    for texts in (["3", "4", "#### 4"], ["5", "6"], ["so 6", "5", "5 .", "the answer is 6"]):
        answers = [final_answer(text) for text in texts]
        assert majority(texts) == collections.Counter(answers).most_common(1)[0][0]
    assert majority(["", ".", "7"]) == "7"
    assert majority(["", " "]) == ""


def test_self_consistency_by_hand():
    targets = ["9 .", "#### 4", "2"]
    greedy = ["so 8 .", "so 4 .", "so 1 ."]
    samples = [
        ["so 9 .", "so 9 .", "so 7 .", "so 9 ."],  # 3 of 4 right, and the majority
        ["so 5 .", "so 4 .", "so 5 .", "so 5 ."],  # 1 of 4 right, outvoted
        ["", "", "", "so 2 ."],  # 1 of 4 right: empty texts have no vote
    ]
    assert self_consistency(targets, greedy, samples).numbers() == pytest.approx(
        {
            "majority_accuracy": 2 / 3,
            "sample_accuracy": (3 + 1 + 1) / 12,
            "greedy_accuracy": 1 / 3,
            "consistency": (3 + 3 + 1) / 12,
        }
    )
