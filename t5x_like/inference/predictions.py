"""What an encoder says of texts, in words: masked tokens, a class, a number, tags, an answer."""

import abc
import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, PyTree

from t5x_like.batches.labelled_rows import LONGEST_QUESTION, STRIDE, Row, RowWriter, Window
from t5x_like.decoding.spans import best_spans, join
from t5x_like.names import choose
from t5x_like.vocabularies import SpecialTokenVocabulary, Vocabulary, check_special_tokens

Item = Mapping[str, Any]  # a text as it is asked about: `text_a`, `words`, `question`, ...
Batch = dict[str, np.ndarray]
Results = Mapping[str, np.ndarray]  # of one row


@dataclasses.dataclass(frozen=True)
class Head(abc.ABC):
    """How one head of an encoder is asked, and what it says.

    Attributes:
        labels: names of classes or tags; of one that has none the number is said.
    """

    writer: RowWriter
    vocabulary: SpecialTokenVocabulary
    labels: Sequence[str]

    def rows(self, item: Item) -> list[Any]:
        """The rows of an item, each a `Row` or a `Window`: one, of `text_a` and `text_b` if any.

        Raises:
            ValueError: the item lacks a field.
        """
        return [self.writer.of_text(*_texts(item))]

    def lay_out(self, rows: Sequence[Any], *, length: int, batch_size: int) -> Batch:
        """Rows as the fields of a batch [B, L]."""
        return lay_out(rows, length=length, batch_size=batch_size)

    @abc.abstractmethod
    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """What is needed of a batch's outputs, [B, ...]; traced."""

    @abc.abstractmethod
    def say(self, item: Item, rows: Sequence[Any], results: Sequence[Results]) -> dict[str, Any]:
        """`prediction`, and what else is told of an item, as JSON has it."""

    def _label(self, number: int) -> str:
        return self.labels[number] if number < len(self.labels) else str(number)


class Asked(Protocol):
    """What a `Predictor` needs of a head: see `Head`."""

    def rows(self, item: Item) -> list[Any]:
        """The rows of an item."""

    def lay_out(self, rows: Sequence[Any], *, length: int, batch_size: int) -> Batch:
        """The batch of some rows."""

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """What is needed of a batch's outputs."""

    def say(self, item: Item, rows: Sequence[Any], results: Sequence[Results]) -> dict[str, Any]:
        """What is told of an item."""


class Predictor:
    """Says of items what a network makes of them, `batch_size` rows at once.

    Args:
        put: from a batch to arrays where the parameters are.
    """

    def __init__(
        self,
        module: nn.Module,
        params: PyTree,
        head: Asked,
        *,
        length: int,
        batch_size: int,
        put: Callable[[Batch], Any] = lambda batch: batch,
    ):
        self._params, self._head, self._put = params, head, put
        self._length, self._batch_size = length, batch_size

        def results(params: PyTree, batch: Mapping[str, Array]) -> dict[str, Array]:
            return head.results(module.apply({"params": params}, batch), batch)

        self._results = jax.jit(results)

    def __call__(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        """What is said of each item: `prediction` and more, see the heads below.

        Raises:
            ValueError: an item lacks a field that the head reads.
        """
        rows = [self._rows(item) for item in items]
        flat = [row for own in rows for row in own]
        results: list[Results] = []
        for start in range(0, len(flat), self._batch_size):
            results += self._of_batch(flat[start : start + self._batch_size])
        said = []
        for item, own in zip(items, rows, strict=True):
            said.append(self._head.say(item, own, results[: len(own)]))
            results = results[len(own) :]
        return said

    def _rows(self, item: Item) -> list[Any]:
        try:
            return self._head.rows(item)
        except ValueError as error:
            raise ValueError(f"{error}: {json.dumps(item, default=str):.200}") from error

    def _of_batch(self, rows: Sequence[Any]) -> list[Results]:
        # One shape for all batches, so that one compiled program serves them all.
        batch = self._head.lay_out(rows, length=self._length, batch_size=self._batch_size)
        found = self._results(self._params, self._put(batch))
        if jax.process_count() > 1:
            found = multihost_utils.process_allgather(found, tiled=True)
        arrays = {name: np.asarray(array) for name, array in found.items()}
        return [{name: array[n] for name, array in arrays.items()} for n in range(len(rows))]


def lay_out(rows: Sequence[Any], *, length: int, batch_size: int) -> Batch:
    """Rows as the fields of a batch [B, L], and `allowed`, True on the context of a question."""
    tokens, types, segments, allowed = np.zeros([4, batch_size, length], np.int32)
    for number, one in enumerate(rows):
        row = one.row if isinstance(one, Window) else one
        tokens[number, : len(row.tokens)] = row.tokens
        types[number, : len(row.tokens)] = row.token_types
        segments[number, : len(row.tokens)] = 1
        if isinstance(one, Window):
            allowed[number, one.first : one.first + len(one.offsets)] = 1
    return {
        "encoder_input_tokens": tokens,
        "encoder_token_types": types,
        "encoder_segment_ids": segments,
        "allowed": allowed,
    }


@dataclasses.dataclass(frozen=True)
class MaskedTokens(Head):
    """Fills in the mask tokens "[MASK]" (or "<mask>") of `text_a`, and of `text_b` if there is one.

    It says `prediction`, the text with the likeliest token at each of them, and `masks`, the `top`
    tokens of each with their probabilities.
    """

    top: int = 5

    def rows(self, item: Item) -> list[Row]:
        """One row, with the mask token as the vocabulary names it."""
        mask = self.vocabulary.piece(self.vocabulary.required_id("mask_id"))
        texts = [t.replace("[MASK]", mask).replace("<mask>", mask) for t in _texts(item)]
        row = self.writer.of_text(*texts)
        if self.vocabulary.mask_id not in row.tokens:
            raise ValueError(f"{texts[0]!r} has no {mask} to fill in")
        return [row]

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """The likeliest tokens of each place."""
        # A model may have more rows than its vocabulary has pieces.
        logits = outputs["logits"][..., : self.vocabulary.vocab_size]
        probabilities, tokens = jax.lax.top_k(jax.nn.softmax(logits), self.top)
        return {"probabilities": probabilities, "tokens": tokens}

    def say(self, item: Item, rows: Sequence[Row], results: Sequence[Results]) -> dict[str, Any]:
        """See the class."""
        [row], [found] = rows, results
        places = np.flatnonzero(row.tokens == self.vocabulary.mask_id)
        filled = row.tokens.copy()
        filled[places] = found["tokens"][places, 0]
        masks = [
            [
                {
                    "token": self.vocabulary.decode([token]).strip(),
                    "probability": float(probability),
                }
                for token, probability in zip(
                    found["tokens"][place], found["probabilities"][place], strict=True
                )
            ]
            for place in places
        ]
        return {"prediction": self.vocabulary.decode(filled[1:-1]).strip(), "masks": masks}


@dataclasses.dataclass(frozen=True)
class Classes(Head):
    """A class of `text_a`, or of the pair with `text_b`, and the `probabilities` of all of them."""

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """The probability of each class."""
        return {"probabilities": jax.nn.softmax(outputs["logits"])}

    def say(self, item: Item, rows: Sequence[Row], results: Sequence[Results]) -> dict[str, Any]:
        """See the class."""
        [found] = results
        probabilities = {
            self._label(number): float(p) for number, p in enumerate(found["probabilities"])
        }
        best = max(probabilities, key=lambda name: probabilities[name])
        return {"prediction": best, "probabilities": probabilities}


@dataclasses.dataclass(frozen=True)
class Number(Head):
    """A number for `text_a`, or for the pair with `text_b`."""

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """The number."""
        return {"value": outputs["logits"][:, 0]}

    def say(self, item: Item, rows: Sequence[Row], results: Sequence[Results]) -> dict[str, Any]:
        """See the class."""
        return {"prediction": float(results[0]["value"])}


@dataclasses.dataclass(frozen=True)
class Tags(Head):
    """A tag for each of `words`, a list or a text with blanks; None for words that did not fit."""

    def rows(self, item: Item) -> list[Row]:
        """One."""
        return [self.writer.of_words(self._words(item))[0]]

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """The likeliest tag of each place."""
        return {"tags": jnp.argmax(outputs["logits"], axis=-1)}

    def say(self, item: Item, rows: Sequence[Row], results: Sequence[Results]) -> dict[str, Any]:
        """See the class."""
        _, places = self.writer.of_words(self._words(item))
        tags = results[0]["tags"]
        return {"prediction": [self._label(tags[p]) if p else None for p in places]}

    def _words(self, item: Item) -> list[str]:
        words = item.get("words", item.get("text_a"))
        words = words.split() if isinstance(words, str) else words
        if not words or not all(isinstance(word, str) and word.strip() for word in words):
            raise ValueError(f"a row needs `words`, a list of strings or a text, not {words!r}")
        return words


@dataclasses.dataclass(frozen=True)
class Answers(Head):
    """The part of `context` that answers `question`, and `null_margin` for there being none.

    Attributes:
        longest_answer: in tokens.
        no_answer: whether "" may be said (SQuAD 2.0).
        null_threshold: which it is where `null_margin` is above; see `decoding.spans.Answer`.
        stride, longest_question: as for the objective question_answering.
    """

    longest_answer: int = 30
    no_answer: bool = False
    null_threshold: float = 0.0
    stride: int = STRIDE
    longest_question: int = LONGEST_QUESTION

    @property
    def threshold(self) -> float | None:
        """Above which there is no answer; None if there always is one."""
        return self.null_threshold if self.no_answer else None

    def rows(self, item: Item) -> list[Window]:
        """One for each part of the context."""
        question, context = (_field(item, name) for name in ("question", "context"))
        self.writer.check_windows(stride=self.stride, longest_question=self.longest_question)
        return self.writer.windows(
            question, context, stride=self.stride, longest_question=self.longest_question
        )

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """The best answer of each part."""
        found = best_spans(
            outputs["start_logits"],
            outputs["end_logits"],
            allowed=batch["allowed"] > 0,
            max_length=self.longest_answer,
        )
        return found._asdict()

    def say(self, item: Item, rows: Sequence[Window], results: Sequence[Results]) -> dict[str, Any]:
        """See the class; `answer` is the best one, whether or not it is said."""
        parts = []
        for window, found in zip(rows, results, strict=True):
            text = ""
            if np.isfinite(found["score"]):  # else there is nothing but blanks
                first, last = window.characters(int(found["start"]), int(found["end"]))
                text = item["context"][first:last]
            parts.append((text, float(found["score"]), float(found["null_score"])))
        answer = join(parts)
        said = answer.text if self.threshold is None else answer.under(self.threshold)
        return {
            "prediction": said,
            "answer": answer.text,
            "null_margin": answer.null_margin,
        }


HEADS: dict[str, type[Head]] = {
    "pretraining": MaskedTokens,
    "masked_lm": MaskedTokens,
    "classification": Classes,
    "regression": Number,
    "tagging": Tags,
    "question_answering": Answers,
}


def make_head(
    name: str,
    *,
    vocabulary: Vocabulary,
    labels: Sequence[str],
    length: int,
    settings: Mapping[str, Any],
) -> Head:
    """What asks a head of this name.

    Args:
        labels: names of classes or tags; without any their numbers are said.
        length: tokens a row.
        settings: of the head: the fields of its class above.

    Raises:
        ValueError: a head that says nothing in words, a setting that it does not have, or a
            vocabulary without [CLS], [SEP] and [MASK].
    """
    make = choose("model.head", name, HEADS)
    known = set(inspect.signature(make).parameters) - {"writer", "vocabulary", "labels"}
    for setting in settings:
        choose(f"setting of predict for the head {name}", setting, dict.fromkeys(known))
    writer = RowWriter(vocabulary, length=length)
    return make(
        writer=writer, vocabulary=check_special_tokens(vocabulary), labels=labels, **settings
    )


def _texts(item: Item) -> list[str]:
    """One text or two."""
    name = next((name for name in ("text_a", "text", "inputs") if name in item), "text_a")
    return [_field(item, one) for one in (name, "text_b") if one == name or one in item]


def _field(item: Item, name: str) -> str:
    if not isinstance(item.get(name), str):
        raise ValueError(f"a row needs the string {name!r}, and has {', '.join(item) or 'nothing'}")
    return item[name]
