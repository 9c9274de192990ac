"""Predictions for questions about documents: answers with facts, long and short answers."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from t5x_like.batches.labelled_rows import Window
from t5x_like.decoding.spans import best_spans
from t5x_like.experiment import data_side
from t5x_like.experiment.data_setup import DataSetup
from t5x_like.inference.encoder_predictions import EncoderPrediction, string_in
from t5x_like.inference.predictor import Item, OutputArrays
from t5x_like.objectives import page_answers
from t5x_like.objectives.supporting_facts import SENTENCES, TYPES, FactRow, FactWriter


@dataclasses.dataclass(frozen=True)
class SupportingFacts(EncoderPrediction):
    """The answer to `question` from `context`, its `type`, and the `facts` that support it.

    A text of `context` has a title in its first line and a sentence in each other line; a fact is
    [title, number of the sentence from 0]. The prediction is "yes", "no", or the best span of a
    sentence or title that is predicted to support it, "" if there is none.

    Attributes:
        longest_answer: maximum length in tokens.
        threshold: the probability from which on a sentence is a fact.
        sentences: see the objective supporting_facts.
    """

    longest_answer: int = 30
    threshold: float = 0.5
    sentences: int = SENTENCES

    kind: ClassVar[str] = "facts"

    def __post_init__(self) -> None:
        writer = FactWriter(self.vocabulary, length=self.length, sentences=self.sentences)
        object.__setattr__(self, "writer", writer)

    @classmethod
    def settings_in(cls, text: DataSetup) -> dict[str, Any]:
        """Return the settings of the objective."""
        return dict(text.examples.settings)

    def example(self, row: Mapping[str, Any]) -> tuple[Item, Any]:
        """Split a held-out row into an item, and its answer and facts."""
        item, answer = super().example(row)
        columns = [data_side.plain(row[name]) for name in ("fact_titles", "fact_numbers")]
        return item, {"answer": answer, "facts": [*map(list, zip(*columns, strict=True))]}

    def value(self, predicted: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer and the facts."""
        return {"answer": predicted["prediction"], "facts": predicted["facts"]}

    def rows(self, item: Item) -> list[FactRow]:
        """Return one row.

        Raises:
            ValueError: the item lacks a field.
        """
        return [self.writer(string_in(item, "question"), strings_in(item))]

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the type of each row's answer, the best span, and the probability of each fact."""
        sentences, facts = batch["encoder_sentences"], jax.nn.sigmoid(outputs["fact_logits"])
        of_tokens = jnp.take_along_axis(facts, jnp.maximum(sentences - 1, 0), axis=1)
        spans = best_spans(
            outputs["start_logits"],
            outputs["end_logits"],
            allowed=(of_tokens >= self.threshold) & (batch["encoder_titles"] > 0),
            max_length=self.longest_answer,
            null_positions=None,
            parts=sentences,
        )
        kinds = jnp.argmax(outputs["type_logits"], axis=1)
        return {**spans._asdict(), "type": kinds, "facts": facts}

    def predict(
        self, item: Item, rows: Sequence[FactRow], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """See the class."""
        [row], [result] = rows, results
        kind = TYPES[int(result["type"])]
        chosen = result["facts"][: len(row.lines)] >= self.threshold
        answer = "" if kind == TYPES[0] else kind
        if kind == TYPES[0] and np.isfinite(result["score"]):
            answer = row.text(int(result["start"]), int(result["end"]))
        facts = [line.fact for line, is_fact in zip(row.lines, chosen, strict=True) if is_fact]
        named = [list(fact) for fact in facts if fact and fact[1] >= 0]
        return {"prediction": answer, "type": kind, "facts": named}


@dataclasses.dataclass(frozen=True)
class LongAnswers(EncoderPrediction):
    """The paragraph of `context` that answers `question`, and its words, yes or no.

    The long answer is the paragraph whose first and last token have the largest sum of logits, over
    all parts of the page that have all of it, and the short answer the best span of words in a
    paragraph. Their scores are these sums minus the sum of both logits at [CLS]. The type is taken
    from the part with the best long answer. `prediction` is the text of the short answer, "yes",
    "no" or "", and `long_answer` the text of the paragraph or "". In `spans` both are like the
    answers of the objective long_answers. A score is -inf, in JSON null, if no part of the page has
    a whole paragraph, or a word of one.

    Attributes:
        longest_answer: maximum length of a short answer in tokens.
        threshold: answers whose score is not above it are not given.
        stride, longest_question: see the objective long_answers.
    """

    longest_answer: int = 38
    threshold: float = 0.0
    stride: int = page_answers.STRIDE
    longest_question: int = page_answers.LONGEST_QUESTION

    kind: ClassVar[str] = "spans"

    def __post_init__(self) -> None:
        writer = page_answers.PageWriter(
            self.vocabulary,
            length=self.length,
            stride=self.stride,
            longest_question=self.longest_question,
        )
        object.__setattr__(self, "writer", writer)

    @classmethod
    def settings_in(cls, text: DataSetup) -> dict[str, Any]:
        """Return the settings of the objective."""
        return dict(text.examples.settings)

    def example(self, row: Mapping[str, Any]) -> tuple[Item, Any]:
        """Split a held-out row into an item, and the answers of each annotator."""
        values = {name: data_side.plain(value) for name, value in row.items()}
        item = {name: values[name] for name in ("question", "context")}
        return item, {"long": values["long_answers"], "short": values["short_answers"]}

    def value(self, predicted: Mapping[str, Any]) -> dict[str, Any]:
        """Return the words of both answers."""
        return predicted["spans"]

    def rows(self, item: Item) -> list[Window]:
        """Return a row for each part of the page.

        Raises:
            ValueError: the item lacks a field.
        """
        return self.writer(string_in(item, "question"), page_answers.Page(strings_in(item)))

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the best short answer of each row, the logits of the long answer, and the type."""
        spans = best_spans(
            outputs["start_logits"],
            outputs["end_logits"],
            allowed=batch["allowed"] > 0,
            max_length=self.longest_answer,
            null_positions=batch["no_answer"],
            parts=batch["encoder_sentences"],
        )
        names = ("long_start_logits", "long_end_logits")
        kinds = jnp.argmax(outputs["type_logits"], axis=1)
        return {**spans._asdict(), "type": kinds, **{name: outputs[name] for name in names}}

    def predict(
        self, item: Item, rows: Sequence[Window], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """See the class."""
        page = page_answers.Page(strings_in(item))
        # The score, the row and the characters of the best answers of each row.
        longs, shorts = [], []
        for number, (window, result) in enumerate(zip(rows, results, strict=True)):
            score, paragraph = _best_paragraph(page, window, result)
            longs.append((score, number, paragraph))
            is_found = np.isfinite(result["score"])  # otherwise the part has only spaces
            words = (
                window.characters(int(result["start"]), int(result["end"])) if is_found else (0, 0)
            )
            shorts.append((float(result["score"] - result["null_score"]), number, words))
        (long_score, number, paragraph), (short_score, _, words) = max(longs), max(shorts)
        kind = page_answers.TYPES[int(results[number]["type"])]
        long_span = page.numbers(*paragraph) if long_score > self.threshold else page_answers.NONE
        short_span = page.numbers(*words) if short_score > self.threshold else page_answers.NONE
        short_text = page.text[slice(*page.characters(short_span))]
        if kind in ("yes", "no"):
            short_span = short_text = kind
        elif kind == "long":
            short_span, short_text = page_answers.NONE, ""
        return {
            "prediction": short_text,
            "long_answer": page.text[slice(*page.characters(long_span))],
            "type": kind,
            "spans": {"long": long_span, "short": short_span},
            "long_score": long_score,
            "short_score": short_score,
        }


def _best_paragraph(
    page: page_answers.Page, window: Window, result: OutputArrays
) -> tuple[float, tuple[int, int]]:
    """Return the score and the characters of the best paragraph that a part of a page has."""
    starts, ends = result["long_start_logits"], result["long_end_logits"]
    best = (-np.inf, (0, 0))
    for begin, end in page.paragraphs.tolist():
        first, last = window.places(begin, end)
        if first != window.nothing:
            best = max(best, (float(starts[first] + ends[last]), (begin, end)))
    return best[0] - float(starts[window.nothing] + ends[window.nothing]), best[1]


def strings_in(item: Item) -> list[str]:
    """Return the `context` of an item.

    Raises:
        ValueError: it is not a list of strings.
    """
    context = item.get("context")
    if not isinstance(context, list) or not all(isinstance(text, str) for text in context):
        raise ValueError("an item needs `context`, a list of strings")
    return context
