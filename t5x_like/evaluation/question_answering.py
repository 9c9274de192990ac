"""Extractive question answering as SQuAD measures it: exact match and F1 of words.

Rajpurkar et al. 2016, section 6.1 (arXiv:1606.05250), and for questions without an answer Rajpurkar
et al. 2018, section 5 (arXiv:1806.03822).
"""

import collections
import re
import string
from collections.abc import Sequence

from t5x_like.decoding.spans import Answer

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> list[str]:
    """The words that count: lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """1 if a text has the words of one of the answers, in order; of no answers: if it has none."""
    return float(any(normalize(predicted) == normalize(answer) for answer in answers or [""]))


def f1(predicted: str, answers: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of words, for the answer where it is largest."""
    return max(_f1(normalize(predicted), normalize(answer)) for answer in answers or [""])


def _f1(predicted: Sequence[str], answer: Sequence[str]) -> float:
    if not predicted or not answer:
        return float(predicted == answer)
    common = (collections.Counter(predicted) & collections.Counter(answer)).total()
    return 2 * common / (len(predicted) + len(answer))


def measure(
    answers: Sequence[Answer],
    references: Sequence[Sequence[str]],
    *,
    threshold: float | None,
) -> dict[str, float]:
    """The means over questions.

    Args:
        answers: of each question.
        references: the right answers of each question, none where there is none.
        threshold: of there being no answer; None if there always is one.

    Returns:
        `exact_match` and `f1`, from 0 to 1; and if some questions have no answer, `best_f1` and the
        `best_threshold` with which it is reached, to be chosen on held-out data (Devlin et al.
        2019, section 4.3).

    Raises:
        ValueError: there are no questions.
    """
    if not answers:
        raise ValueError("there is no question to answer")
    limit = float("inf") if threshold is None else threshold
    pairs = list(zip(answers, references, strict=True))
    number = len(pairs)
    found = {
        "exact_match": sum(exact_match(a.under(limit), right) for a, right in pairs) / number,
        "f1": sum(f1(a.under(limit), right) for a, right in pairs) / number,
    }
    if not all(references):
        found |= _best(pairs)
    return found


def _best(pairs: Sequence[tuple[Answer, Sequence[str]]]) -> dict[str, float]:
    """The threshold with the largest F1: below all margins, or at one of them."""
    ordered = sorted(pairs, key=lambda pair: pair[0].null_margin)
    total = sum(f1("", right) for _, right in ordered)  # all questions answered by nothing
    best, threshold = total, ordered[0][0].null_margin - 1
    for number, (answer, right) in enumerate(ordered):
        total += f1(answer.text, right) - f1("", right)
        last = number + 1 == len(ordered)
        if total > best and (last or ordered[number + 1][0].null_margin > answer.null_margin):
            best, threshold = total, answer.null_margin
    return {"best_f1": best / len(ordered), "best_threshold": threshold}
