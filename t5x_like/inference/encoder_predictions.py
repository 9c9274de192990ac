"""Predictions of encoders: masked tokens, classes, numbers, tags, answer spans, choices.

Also of networks that read branches of a knowledge graph, or words as characters.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from t5x_like.batches.converters import encoder_field
from t5x_like.batches.knowledge_graph import TreeWriter
from t5x_like.batches.labelled_rows import (
    LONGEST_QUESTION,
    STRIDE,
    EncoderRow,
    RowWriter,
    Window,
    WordRow,
    WordRowWriter,
)
from t5x_like.decoding.spans import best_spans, join
from t5x_like.experiment.data_setup import DataSetup
from t5x_like.inference.predictor import Item, NumpyBatch, OutputArrays, Prediction
from t5x_like.nn.linear_chain import Chain, best_tags
from t5x_like.objectives.candidates import LONGEST_CHOICE, CandidateRow, CandidateWriter
from t5x_like.vocabularies.words import LONGEST

_STEP = 64  # tokens, the block of the published BigBirds; few lengths compile few programs


@dataclasses.dataclass(frozen=True)
class EncoderPrediction(Prediction):
    """A prediction from rows [CLS] text_a [SEP] text_b [SEP].

    Attributes:
        writer: tokenizes texts into rows, a `RowWriter` unless a subclass has another.

    Raises:
        ValueError: the vocabulary lacks [CLS], [SEP] or [MASK].
    """

    writer: Any = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "writer", RowWriter(self.vocabulary, length=self.length))

    def rows(self, item: Item) -> list[Any]:
        """Return one row, of `text_a` and, if the item has it, `text_b`.

        Raises:
            ValueError: the item lacks a field.
        """
        return [self.writer.of_text(*_texts(item))]

    def collate(self, rows: Sequence[Any], *, batch_size: int) -> NumpyBatch:
        """Pad rows into the fields of a batch [B, L].

        For questions `allowed` is 1 on the context, and `no_answer` [B] is the position of [CLS].

        L is a multiple of `_STEP`, or the prediction's length. BigBird attends to all tokens of a
        short row, as transformers does, and no network computes more padding than it needs.

        Args:
            rows: `Row`s or `Window`s.
            batch_size: B.
        """
        longest = max(len(_row(row).tokens) for row in rows)
        length = min(self.length, -(-longest // _STEP) * _STEP)
        zeros = np.zeros([batch_size, length], np.int32)
        batch = {"encoder_segment_ids": zeros.copy(), "allowed": zeros.copy()}
        batch["no_answer"] = zeros[:, 0].copy()
        for number, row in enumerate(rows):
            encoder_row = _row(row)
            size = len(encoder_row.tokens)
            for name, values in encoder_row.features.items():
                batch.setdefault(encoder_field(name), zeros.copy())[number, :size] = values
            batch["encoder_segment_ids"][number, :size] = 1
            if isinstance(row, Window):
                batch["allowed"][number, row.context] = 1
                batch["no_answer"][number] = row.places(0, 0)[0]
        return batch


def _row(row: EncoderRow | Window) -> EncoderRow:
    return row.row if isinstance(row, Window) else row


@dataclasses.dataclass(frozen=True)
class MaskFilling(EncoderPrediction):
    """Fill in the mask tokens "[MASK]" (or "<mask>") of `text_a` and, if present, `text_b`.

    `prediction` is the text with each mask token replaced by the most likely token; `masks` has the
    `top` most likely tokens of each with their probabilities.

    Raises:
        ValueError: `top` is not from 1 to the number of pieces, or see `EncoderPrediction`.
    """

    top: int = 5

    from_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        pieces = self.vocabulary.vocab_size
        if not 1 <= self.top <= pieces:
            raise ValueError(f"predict.top={self.top} must be from 1 to {pieces}, all pieces")

    def example(self, row: Mapping[str, Any]) -> tuple[Item, Any]:
        """Return the one or two texts of a row of a batch, and the original text."""
        size = int(np.sum(row["encoder_segment_ids"] > 0))
        types = row.get("encoder_token_types", np.zeros(size, np.int32))[:size]
        tokens = row["encoder_input_tokens"][:size]
        parts = [tokens[types == number][1 - number : -1] for number in (0, 1)]
        names = ("text_a", "text_b") if np.any(types) else ("text_a",)
        decode = self.vocabulary.decode
        item = {name: decode(part) for name, part in zip(names, parts, strict=False)}
        return item, decode(row["encoder_target_tokens"][1 : size - 1])

    def can_predict(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row of a batch has a mask token."""
        return bool(np.any(row["encoder_input_tokens"] == self.vocabulary.mask_id))

    def rows(self, item: Item) -> list[EncoderRow]:
        """Return one row, with "[MASK]" or "<mask>" replaced by the vocabulary's mask token."""
        mask = self.vocabulary.piece(self.vocabulary.required_id("mask_id"))
        texts = [t.replace("[MASK]", mask).replace("<mask>", mask) for t in _texts(item)]
        row = self.writer.of_text(*texts)
        if self.vocabulary.mask_id not in row.tokens:
            raise ValueError(f"{texts[0]!r} has no {mask} to fill in")
        return [row]

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the most likely tokens at each position."""
        # A model may have more logits than its vocabulary has pieces.
        known = jax.nn.softmax(outputs["logits"])[..., : self.vocabulary.vocab_size]
        probabilities, tokens = jax.lax.top_k(known, self.top)
        return {"probabilities": probabilities, "tokens": tokens}

    def predict(
        self, item: Item, rows: Sequence[EncoderRow], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """See the class."""
        [row], [result] = rows, results
        positions = np.flatnonzero(row.tokens == self.vocabulary.mask_id)
        filled = row.tokens.copy()
        filled[positions] = result["tokens"][positions, 0]
        masks = [
            [
                {
                    "token": self.vocabulary.decode([token]).strip(),
                    "probability": float(probability),
                }
                for token, probability in zip(
                    result["tokens"][position], result["probabilities"][position], strict=True
                )
            ]
            for position in positions
        ]
        return {"prediction": self.vocabulary.decode(filled[1:-1]).strip(), "masks": masks}


@dataclasses.dataclass(frozen=True)
class Classes(EncoderPrediction):
    """The class of `text_a`, or of the pair with `text_b`, and all `probabilities`."""

    kind: ClassVar[str] = "class"
    has_labels: ClassVar[bool] = True

    def target(self, label: int) -> str:
        """Return the name of a class."""
        return self.label(label)

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the probability of each class."""
        return {"probabilities": jax.nn.softmax(outputs["logits"])}

    def predict(
        self, item: Item, rows: Sequence[EncoderRow], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """See the class."""
        [result] = results
        probabilities = {
            self.label(number): float(p) for number, p in enumerate(result["probabilities"])
        }
        best = max(probabilities, key=lambda name: probabilities[name])
        return {"prediction": best, "probabilities": probabilities}


@dataclasses.dataclass(frozen=True)
class SeveralClasses(EncoderPrediction):
    """Multi-label classification: each class has an independent probability.

    `prediction` lists the classes whose probability is above `threshold`.
    """

    threshold: float = 0.5

    has_labels: ClassVar[bool] = True

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the independent probability of each class."""
        return {"probabilities": jax.nn.sigmoid(outputs["logits"])}

    def predict(
        self, item: Item, rows: Sequence[EncoderRow], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """See the class."""
        [result] = results
        named = {self.label(n): float(p) for n, p in enumerate(result["probabilities"])}
        above = [name for name, p in named.items() if p > self.threshold]
        return {"prediction": above, "probabilities": named}


@dataclasses.dataclass(frozen=True)
class Numbers(EncoderPrediction):
    """A number for each label: regression with several outputs."""

    has_labels: ClassVar[bool] = True

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the numbers."""
        return {"values": outputs["logits"]}

    def predict(
        self, item: Item, rows: Sequence[EncoderRow], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """See the class."""
        values = results[0]["values"]
        return {"prediction": {self.label(n): float(value) for n, value in enumerate(values)}}


@dataclasses.dataclass(frozen=True)
class PairClasses(Classes):
    """The class of the pair of `text_a` and `text_b`, and all `probabilities`."""

    def rows(self, item: Item) -> list[Any]:
        """Return one row.

        Raises:
            ValueError: the item lacks a text.
        """
        string_in(item, "text_b")
        return super().rows(item)


@dataclasses.dataclass(frozen=True)
class Number(EncoderPrediction):
    """A number for `text_a`, or for the pair with `text_b`: regression."""

    kind: ClassVar[str] = "number"

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the number."""
        return {"value": outputs["logits"][:, 0]}

    def predict(
        self, item: Item, rows: Sequence[EncoderRow], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """See the class."""
        return {"prediction": float(results[0]["value"])}


@dataclasses.dataclass(frozen=True)
class Tags(EncoderPrediction):
    """A tag for each of `words`, a list or a text; None for words beyond the row's length."""

    kind: ClassVar[str] = "tags"
    has_labels: ClassVar[bool] = True

    def target(self, label: Sequence[int]) -> list[str]:
        """Return the name of each tag."""
        return [self.label(tag) for tag in label]

    def rows(self, item: Item) -> list[EncoderRow]:
        """Return one row, in which the first token of each word predicts its tag."""
        return [self.writer.of_words(self._words(item))[0]]

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the most likely tag at each position."""
        return {"tags": jnp.argmax(outputs["logits"], axis=-1)}

    def predict(
        self, item: Item, rows: Sequence[EncoderRow], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """See the class."""
        _, positions = self.writer.of_words(self._words(item))
        tags = results[0]["tags"]
        return {"prediction": [self.label(tags[p]) if p >= 0 else None for p in positions]}

    def _words(self, item: Item) -> list[str]:
        words = item.get("words", item.get("text_a"))
        words = words.split() if isinstance(words, str) else words
        if not words or not all(isinstance(word, str) and word.strip() for word in words):
            raise ValueError(f"an item needs `words`, a list of strings or a text, not {words!r}")
        return words


@dataclasses.dataclass(frozen=True)
class AnswerPrediction(EncoderPrediction):
    """The span of `context` that answers `question`, and the `null_margin` of no answer.

    Attributes:
        longest_answer: maximum length in tokens.
        no_answer: whether the prediction may be "", no answer (SQuAD 2.0).
        null_threshold: the prediction is "" if `null_margin` is above this; see
            `decoding.spans.Answer`.
        stride, longest_question: see the objective question_answering.
    """

    longest_answer: int = 30
    no_answer: bool = False
    null_threshold: float = 0.0
    stride: int = STRIDE
    longest_question: int = LONGEST_QUESTION

    @classmethod
    def settings_in(cls, text: DataSetup) -> dict[str, Any]:
        """Return the settings of the objective."""
        return dict(text.data.objective_settings)

    @property
    def threshold(self) -> float | None:
        """The `null_margin` above which the prediction is ""; None if it is always an answer."""
        return self.null_threshold if self.no_answer else None

    def rows(self, item: Item) -> list[Window]:
        """Return a row for each window of the context."""
        question, context = (string_in(item, name) for name in ("question", "context"))
        self.writer.check_windows(stride=self.stride, longest_question=self.longest_question)
        return self.writer.windows(
            question, context, stride=self.stride, longest_question=self.longest_question
        )

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the best span of each window."""
        spans = best_spans(
            outputs["start_logits"],
            outputs["end_logits"],
            allowed=batch["allowed"] > 0,
            max_length=self.longest_answer,
            null_positions=batch["no_answer"],
        )
        return spans._asdict()

    def predict(
        self, item: Item, rows: Sequence[Window], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """See the class; `answer` is the best span even if the prediction is ""."""
        parts = []
        for window, result in zip(rows, results, strict=True):
            text = ""
            if np.isfinite(result["score"]):  # otherwise the window has only spaces
                first, last = window.characters(int(result["start"]), int(result["end"]))
                text = item["context"][first:last]
            parts.append((text, float(result["score"]), float(result["null_score"])))
        answer = join(parts)
        predicted = answer.text if self.threshold is None else answer.under(self.threshold)
        return {
            "prediction": predicted,
            "answer": answer.text,
            "null_margin": answer.null_margin,
        }


def _texts(item: Item) -> list[str]:
    """Return the one or two texts of an item."""
    name = next((name for name in ("text_a", "text", "inputs") if name in item), "text_a")
    return [string_in(item, field) for field in (name, "text_b") if field == name or field in item]


def string_in(item: Item, name: str) -> str:
    """Return a string field of an item.

    Raises:
        ValueError: the item has no such string.
    """
    if not isinstance(item.get(name), str):
        raise ValueError(
            f"an item needs the string {name!r}, and has {', '.join(item) or 'nothing'}"
        )
    return item[name]


@dataclasses.dataclass(frozen=True)
class EncoderChoices(EncoderPrediction):
    """The choice that best fits `text_a`, or `text_a` and `text_b`.

    `prediction` is its text, `answer` its index, and `probabilities` covers all choices.

    Attributes:
        max_rows: maximum choices of an item, C.
    """

    max_rows: int

    kind: ClassVar[str] = "choice"

    def value(self, predicted: Mapping[str, Any]) -> int:
        """Return the index of the choice."""
        return predicted["answer"]

    @classmethod
    def settings_in(cls, text: DataSetup) -> dict[str, Any]:
        """Return the maximum number of choices."""
        return {"max_rows": text.examples.settings["choices"]}

    def rows(self, item: Item) -> list[Any]:
        """Return one example, with a row for each choice.

        Raises:
            ValueError: the item lacks a field, or has too many choices.
        """
        texts = [string_in(item, name) for name in ("text_a", "text_b") if name in item]
        return [self.writer.of_choices(choices_in(item, most=self.max_rows), *texts)]

    def collate(self, rows: Sequence[Sequence[EncoderRow]], *, batch_size: int) -> NumpyBatch:
        """Pad examples into the fields of a batch [B, C, L]."""
        tokens, types, segments = np.zeros([3, batch_size, self.max_rows, self.length], np.int32)
        for number, example in enumerate(rows):
            for choice, row in enumerate(example):
                here = number, choice, slice(len(row.tokens))
                tokens[here], types[here], segments[here] = row.tokens, row.token_types, 1
        return {
            "encoder_input_tokens": tokens,
            "encoder_token_types": types,
            "encoder_segment_ids": segments,
        }

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the probability of each choice."""
        return {"probabilities": jax.nn.softmax(outputs["logits"])}

    def predict(
        self, item: Item, rows: Sequence[Any], results: Sequence[OutputArrays]
    ) -> dict[str, Any]:
        """See the class."""
        return best_choice(item, results[0]["probabilities"])


@dataclasses.dataclass(frozen=True)
class Candidates(EncoderChoices):
    """The candidate among `choices` that answers `text_b` by the documents, the lines of `text_a`.

    Attributes:
        longest_choice, longest_question: see the objective candidates.
    """

    longest_choice: int = LONGEST_CHOICE
    longest_question: int = LONGEST_QUESTION

    @classmethod
    def settings_in(cls, text: DataSetup) -> dict[str, Any]:
        """Return the settings of the objective."""
        settings = dict(text.examples.settings)
        return {"max_rows": settings.pop("choices"), **settings}

    def __post_init__(self) -> None:
        writer = CandidateWriter(
            self.vocabulary,
            length=self.length,
            longest_choice=self.longest_choice,
            longest_question=self.longest_question,
        )
        object.__setattr__(self, "writer", writer)

    def rows(self, item: Item) -> list[CandidateRow]:
        """Return one row, of all candidates.

        Raises:
            ValueError: the item lacks a field, or has too many choices.
        """
        texts = [string_in(item, name) for name in ("text_a", "text_b")]
        return [self.writer(choices_in(item, most=self.max_rows), *texts)]

    def collate(self, rows: Sequence[Any], *, batch_size: int) -> NumpyBatch:
        """Pad rows into the fields of a batch [B, L]."""
        return EncoderPrediction.collate(self, rows, batch_size=batch_size)


def choices_in(item: Item, *, most: int) -> list[str]:
    """Return the choices of an item.

    Raises:
        ValueError: it has no choices, more than `most`, or choices that are not strings.
    """
    value = item.get("choices")
    choices = value if isinstance(value, list) else []
    if not 1 <= len(choices) <= most or not all(isinstance(choice, str) for choice in choices):
        raise ValueError(f"an item needs `choices`, up to {most} strings")
    return choices


def best_choice(item: Item, probabilities: np.ndarray) -> dict[str, Any]:
    """Return the most likely of an item's choices, its index, and the probabilities of all."""
    of_choices = [float(p) for p in probabilities][: len(item["choices"])]
    best = int(np.argmax(of_choices))
    return {"prediction": item["choices"][best], "answer": best, "probabilities": of_choices}


@dataclasses.dataclass(frozen=True)
class _OfTrees(EncoderPrediction):
    """A prediction from rows with branches.

    Attributes:
        graph, branches, relations, reserved: see the objective.

    Raises:
        ValueError: the graph cannot be read, or a setting does not fit the rows.
    """

    graph: str = ""
    branches: int = 2
    relations: bool = True
    reserved: int = 0

    def __post_init__(self) -> None:
        writer = TreeWriter(
            self.vocabulary,
            length=self.length,
            graph=self.graph,
            branches=self.branches,
            relations=self.relations,
            reserved=self.reserved,
        )
        object.__setattr__(self, "writer", writer)

    @classmethod
    def settings_in(cls, text: DataSetup) -> dict[str, Any]:
        """Return the settings of the objective."""
        return dict(text.data.objective_settings)


@dataclasses.dataclass(frozen=True)
class KnowledgeClasses(_OfTrees, Classes):
    """The class of `text_a`, or of the pair with `text_b`, and all `probabilities`."""


@dataclasses.dataclass(frozen=True)
class KnowledgeTags(_OfTrees, Tags):
    """A tag for each of `words`, a list or a text; None for words beyond the row's length."""

    relations: bool = False


@dataclasses.dataclass(frozen=True)
class KnowledgeAnswers(_OfTrees, AnswerPrediction):
    """The span of `context` that answers `question`; a branch is never part of an answer."""

    reserved: int = 64


@dataclasses.dataclass(frozen=True)
class _OfWords(EncoderPrediction):
    """A prediction from rows <S> words </S>.

    Raises:
        ValueError: the vocabulary has pieces rather than words.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "writer", WordRowWriter(self.vocabulary, length=self.length))

    def collate(self, rows: Sequence[Any], *, batch_size: int) -> NumpyBatch:
        """Pad rows into the fields of a batch, which include the characters [B, L, 50]."""
        batch = super().collate(rows, batch_size=batch_size)
        length = batch["encoder_segment_ids"].shape[1]
        characters = np.zeros([batch_size, length, LONGEST], np.int32)
        for number, row in enumerate(rows):
            word_row = cast(WordRow, _row(row))
            characters[number, : len(word_row.characters)] = word_row.characters
        return batch | {"encoder_characters": characters}


@dataclasses.dataclass(frozen=True)
class TextClass(_OfWords, Classes):
    """The class of `text_a`, or of the pair with `text_b`, and all `probabilities`."""


@dataclasses.dataclass(frozen=True)
class WordTags(_OfWords, Tags):
    """A tag for each of `words`, a list or a text; None for words beyond the row's length."""


@dataclasses.dataclass(frozen=True)
class WordAnswers(_OfWords, AnswerPrediction):
    """The span of `context` that answers `question`, both read word by word."""


@dataclasses.dataclass(frozen=True)
class ChainedWordTags(WordTags):
    """The most likely sequence of tags of `words`, by a conditional random field."""

    def results(self, outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the tag at each position; <S> and </S> have none."""
        real = batch["encoder_segment_ids"] > 0
        counts = real & jnp.roll(real, -1, axis=1).at[:, -1].set(False)
        counts = counts.at[:, 0].set(False)
        chain = cast(Chain, outputs["chain"])
        return {"tags": best_tags(chain, outputs["logits"], counts)}
