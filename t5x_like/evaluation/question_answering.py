"""Extractive question answering as SQuAD measures it: exact match and F1 of words.

Rajpurkar et al. 2016, section 6.1 (arXiv:1606.05250), and for questions without an answer Rajpurkar
et al. 2018, section 5 (arXiv:1806.03822).
"""

import collections
import dataclasses
import re
import string
from collections.abc import Sequence
from typing import ClassVar

from t5x_like.decoding.spans import Answer
from t5x_like.evaluation.measure import Measured, Row, RowMeasure
from t5x_like.inference.encoder_predictions import Answers
from t5x_like.inference.predictor import Predictor

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """1 if a text has the words of one of the answers in order; without answers, if it has none."""
    return float(any(normalize(predicted) == normalize(answer) for answer in answers or [""]))


def f1(predicted: str, answers: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of words, for the answer where it is largest."""
    return max(_f1(normalize(predicted), normalize(answer)) for answer in answers or [""])


def _f1(predicted: Sequence[str], answer: Sequence[str]) -> float:
    if not predicted or not answer:
        return float(predicted == answer)
    common = (collections.Counter(predicted) & collections.Counter(answer)).total()
    return 2 * common / (len(predicted) + len(answer))


@dataclasses.dataclass(frozen=True)
class Squad(RowMeasure):
    """Exact match and F1 of the answers to `question` from `context`, beside `answers`."""

    needs: ClassVar[tuple[str, ...]] = ("predictor", "rows")

    def measure(self, predictor: Predictor, rows: Sequence[Row]) -> Measured:
        """As `rates`; the predictions are those of `encoder_predictions.Answers`.

        Raises:
            ValueError: there are no rows, or they lack a field.
        """
        prediction = predictor.prediction
        if not isinstance(prediction, Answers):
            raise ValueError(
                "the measure squad needs a model with the head question_answering; this one has "
                f"another: it predicts {type(prediction).__name__.lower()}"
            )
        predicted = predictor(
            [{name: row[name] for name in ("question", "context")} for row in rows]
        )
        answers = [Answer(one["answer"], one["null_margin"]) for one in predicted]
        references = [row["answers"] for row in rows]
        return rates(answers, references, threshold=prediction.threshold), predicted


def rates(
    answers: Sequence[Answer],
    references: Sequence[Sequence[str]],
    *,
    threshold: float | None,
) -> dict[str, float]:
    """The means over questions.

    Args:
        answers: the model's answer to each question.
        references: the right answers to each question, none for a question without an answer.
        threshold: the null margin above which the model gives no answer; None if it always does.

    Returns:
        `exact_match` and `f1`, from 0 to 1; and if some questions have no answer, the best F1
        over all thresholds, `best_f1`, and its `best_threshold`, to be chosen on held-out data
        (Devlin et al. 2019, section 4.3).

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
    """The threshold with the largest F1, below all margins or at one of them."""
    ordered = sorted(pairs, key=lambda pair: pair[0].null_margin)
    total = sum(f1("", right) for _, right in ordered)  # no answer to any question
    best, threshold = total, ordered[0][0].null_margin - 1
    for number, (answer, right) in enumerate(ordered):
        total += f1(answer.text, right) - f1("", right)
        last = number + 1 == len(ordered)
        if total > best and (last or ordered[number + 1][0].null_margin > answer.null_margin):
            best, threshold = total, answer.null_margin
    return {"best_f1": best / len(ordered), "best_threshold": threshold}
