"""Zero-shot prediction of a passage's last word, and of the choice that fills a blank.

Radford et al. 2019, sections 3.2 (the Children's Book Test, Hill et al. 2016) and 3.3 (LAMBADA,
Paperno et al. 2016).
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from t5x_like.evaluation.documents import exp
from t5x_like.evaluation.measure import (
    Measured,
    Row,
    RowMeasure,
    chance_accuracy,
    choices_of,
    text_of,
)
from t5x_like.evaluation.metrics.metric import Statistics, means
from t5x_like.inference.text_model import TextModel


@dataclasses.dataclass(frozen=True)
class LastWord(RowMeasure):
    """Prediction of the last word of each `text`: everything after its last whitespace.

    As in LAMBADA, a word is right if greedy decoding generates all of its tokens; what would be
    generated after them does not count.
    """

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`."""
        return {"accuracy": False, "perplexity": True}

    def measure(self, model: TextModel, rows: Sequence[Row]) -> Measured:
        """Return `accuracy`, and `perplexity` of last words, exp of their mean -log p.

        Raises:
            ValueError: `rows` is empty, or a text has only one word.
        """
        pairs = [_last_word(text_of(row, "text")) for row in rows]
        scores = model.score(pairs)
        predicted = [
            {"text": prompt + word, "log_prob": score.total, "correct": score.greedy}
            for (prompt, word), score in zip(pairs, scores, strict=True)
        ]
        counts = np.array([[score.greedy, score.total] for score in scores], float)
        return {
            **Statistics(counts, _last_word_rates).estimates(),
            "cut": _share_cut(model, pairs),
            "examples": len(rows),
        }, predicted


def _last_word_rates(counts: Float[np.ndarray, "N 2"]) -> dict[str, float]:
    greedy, log_p = counts.mean(axis=0)
    return {"accuracy": greedy, "perplexity": exp(-log_p)}


def _last_word(text: str) -> tuple[str, str]:
    """Split a text before the whitespace of its last word."""
    text = text.rstrip()
    word = text.split()[-1] if text else ""
    prompt = text.removesuffix(word).rstrip()
    if not prompt:
        raise ValueError(f"a text needs two words, to predict the last one: {text!r:.80}")
    return prompt, text.removeprefix(prompt)


@dataclasses.dataclass(frozen=True)
class ClozeChoice(RowMeasure):
    """Choosing among `choices` for the blank in `inputs`; `targets` is right.

    A choice is scored by its log-likelihood together with the text after the blank, given the text
    before it (section 3.2). If the inputs have no blank, the choices follow them.

    Attributes:
        blank: the string in `inputs` that stands for the blank.
    """

    blank: str = "XXXXX"

    def directions(self) -> Mapping[str, bool]:
        """See `Measure`."""
        return {"accuracy": False, "accuracy_per_token": False}

    def measure(self, model: TextModel, rows: Sequence[Row]) -> Measured:
        """Return `accuracy` by log p, and `accuracy_per_token` by log p per token.

        Raises:
            ValueError: a row has no choices, or its target is not a choice.
        """
        choices_of_rows = [choices_of(row) for row in rows]
        pairs = []
        for row, choices in zip(rows, choices_of_rows, strict=True):
            before, blank, after = text_of(row, "inputs").partition(self.blank)
            joint = "" if blank or before[-1:].isspace() else " "
            pairs += [(before + joint, choice + after) for choice in choices]
        scores = iter(model.score(pairs))
        predicted, right = [], []
        for row, choices in zip(rows, choices_of_rows, strict=True):
            row_scores = [next(scores) for _ in choices]
            by = [[score.total for score in row_scores], [score.per_token for score in row_scores]]
            picked = [choices[int(np.argmax(values))] for values in by]
            right.append([choice == row["targets"] for choice in picked])
            predicted.append(
                {"prediction": picked[0], "targets": row["targets"], "log_probs": by[0]}
            )
        statistics = Statistics(np.array(right, float), means("accuracy", "accuracy_per_token"))
        with_answers = [{**row, "answers": [row["targets"]]} for row in rows]
        return {
            **statistics.estimates(),
            "chance_accuracy": chance_accuracy(with_answers),
            "cut": _share_cut(model, pairs),
            "examples": len(rows),
        }, predicted


def _share_cut(model: TextModel, pairs: Sequence[tuple[str, str]]) -> float:
    """Return the share of prompts truncated at their beginning, from 0 to 1."""
    return float(np.mean([model.excess(*pair) > 0 for pair in pairs]))
