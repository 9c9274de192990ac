"""The final answer of a chain of thought: how it is read from a text, accuracy, majority votes.

Wei et al. 2022 end a chain with "The answer is 8.", GSM8K (Cobbe et al. 2021) with "#### 8".
"""

import collections
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like.evaluation.metrics import classes
from t5x_like.evaluation.metrics.metric import Statistics, means

_MARKERS = (re.compile(r"####"), re.compile(r"\bthe answer is\b:?", re.IGNORECASE))
_NUMBER = re.compile(
    r"(?:(?<![\w.)])-)?\$?(?:(?<=\$)-)?"  # the hyphen of "16-3" is not a sign
    r"(?:[0-9][0-9,]*(?:\.[0-9]+)?|(?<![0-9.])\.[0-9]+)"
)


def final_answer(text: str) -> str:
    """Return the final answer of a text, in lower case; "" if there is none.

    The rules of lm-eval's tasks gsm8k and gsm8k_cot (strict-match, then flexible-extract), extended
    to answers that are not numbers:

    1. What follows the first "####", or otherwise the first "the answer is": the number there, or
       if there is none, the line up to its end.
    2. Without such a marker, or with nothing after it, the last number of the text.
    3. Without a number the whole text.

    Numbers lose "$" and commas, texts the spaces around them and a period at the end.
    """
    for marker in _MARKERS:
        if match := marker.search(text):
            line = text[match.end() :].partition("\n")[0].strip()
            number = _NUMBER.match(line)
            if answer := _normalized(number[0] if number else line):
                return answer
    numbers = _NUMBER.findall(text)
    return _normalized(numbers[-1] if numbers else text)


def _normalized(answer: str) -> str:
    if _NUMBER.fullmatch(answer):
        answer = re.sub(r"[$,]", "", answer)
    return answer.strip().removesuffix(".").rstrip().lower()


def majority(texts: Sequence[str]) -> str:
    """Return the most frequent final answer of several texts, the first of equals.

    A text without an answer has no vote: "" only if no text has an answer.
    """
    counted = collections.Counter(answer for text in texts if (answer := final_answer(text)))
    return counted.most_common(1)[0][0] if counted else ""


def _right(target: str | Sequence[str]) -> list[str]:
    return list(map(final_answer, [target] if isinstance(target, str) else target))


def accuracy(targets: Sequence[str | Sequence[str]], predictions: Sequence[str]) -> Statistics:
    """The share of texts whose final answer is the final answer of a target."""
    pairs = zip(targets, predictions, strict=True)
    right = [final_answer(text) in _right(target) for target, text in pairs]
    return Statistics(np.array(right, float)[:, None], means("final_answer"))


def constants(targets: Sequence[str | Sequence[str]]) -> list[list[Any]]:
    """Return constant predictions of the two most frequent final answers."""
    return classes.constants(list(map(_right, targets)))


SELF_CONSISTENCY = ("majority_accuracy", "sample_accuracy", "greedy_accuracy", "consistency")


def self_consistency(
    targets: Sequence[str | Sequence[str]],
    greedy: Sequence[str],
    samples: Sequence[Sequence[str]],
) -> Statistics:
    """The accuracies of final answers with self-consistency (Wang et al. 2022, section 2).

    Args:
        targets: the right texts of each row, whose final answers are right.
        greedy: the greedily decoded text of each row.
        samples: the sampled texts of each row, at least one.

    Returns:
        Statistics of `majority_accuracy`, the share of rows whose `majority` is right;
        `sample_accuracy`, the expected accuracy of a single sample; `greedy_accuracy`; and
        `consistency`, the share of samples that agree with the majority.
    """
    rows = []
    for target, text, sampled in zip(targets, greedy, samples, strict=True):
        right, chosen = _right(target), majority(sampled)
        answers = list(map(final_answer, sampled))
        rows.append(
            [
                chosen in right,
                np.mean([answer in right for answer in answers]),
                final_answer(text) in right,
                np.mean([answer == chosen for answer in answers]) if chosen else 0.0,
            ]
        )
    return Statistics(np.array(rows, float), means(*SELF_CONSISTENCY))
