"""Encoder objectives over groups of documents: sentences -> rows by a format -> masks."""

import dataclasses
import hashlib
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int, Int32

from t5x_like.batches.encoder_rows import SpecialTokens, TextRows, lay_out
from t5x_like.objectives.formats import DocumentGroup, Format
from t5x_like.objectives.objective import Example, ExampleSpec, Groups, OfGroup, of_masked
from t5x_like.vocabularies import Vocabulary

# A full stop, question or exclamation mark, optionally with a closing quote or bracket, then
# whitespace and the beginning of a sentence: any letter or digit except a to z, optionally after an
# opening quote or bracket.
_BREAK = re.compile(
    r"""\s*\n\s*|(?:(?<=[.!?])|(?<=[.!?]["'\u201d\u2019)\]]))\s+(?=["'\u201c\u2018(\[]?[^\W_a-z])"""
)


def split(text: str) -> list[str]:
    """Return the sentences of a text, without empty sentences or surrounding whitespace.

    They end at line breaks and at the punctuation of `_BREAK`, which splits "Dr. Who": for
    BERT's purposes a sentence is any run of text (Devlin et al. 2019, section 3).
    """
    return [sentence for sentence in _BREAK.split(text.strip()) if sentence]


def encode(
    text: str, vocabulary: Vocabulary, *, between: str = ""
) -> tuple[Int32[np.ndarray, " L"], Int32[np.ndarray, " S"]]:
    """Return the tokens of a text, and the number of tokens of each sentence.

    Each sentence is tokenized separately, without special tokens.

    Args:
        between: inserted before every sentence except the first.
    """
    parts = split(text)
    sentences = [*parts[:1], *(between + sentence for sentence in parts[1:])]
    encoded = [vocabulary.encode(sentence) for sentence in sentences]
    lengths = np.array([len(tokens) for tokens in encoded], np.int32)
    return np.array([token for tokens in encoded for token in tokens], np.int32), lengths


# (random generator, rows, special tokens) -> the features that masking changes or adds, [B, L]:
# "inputs", "loss_weights" and others. Targets are the original text.
CorruptRows = Callable[[np.random.Generator, TextRows, SpecialTokens], dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Grouping:
    """Makes rows in a format, and masks them: an `OfGroup`.

    Attributes:
        format: the format of the rows.
        corrupt: masks the tokens.
        special: the special tokens of the vocabulary.
        length: tokens per row.
        features: the features of an example.
        copies: 0 for new masks at every epoch (RoBERTa's dynamic masking). N for static masking:
            the mask of a row depends on its tokens and on one of N numbers, sampled at each epoch;
            the division of documents into rows likewise.
    """

    format: Format
    corrupt: CorruptRows
    special: SpecialTokens
    length: int
    features: tuple[str, ...]
    copies: int = 0

    def __call__(
        self,
        tokens: Int[np.ndarray, " T"],
        lengths: Int[np.ndarray, " S"],
        counts: Int[np.ndarray, " D"],
        generator: np.random.Generator,
    ) -> list[Example]:
        """Return the rows of a group."""
        room = self.length - self.format.special_count
        documents = DocumentGroup.of(tokens, lengths, counts, longest=room)
        copies, draws = self._draws(documents, generator)
        planned = self.format.plan(documents, room, draws)
        if not planned:
            return []
        rows = lay_out(
            documents.tokens,
            planned,
            length=self.length,
            separators=self.format.separators,
            special=self.special,
        )
        fields = {"targets": rows.tokens, "token_types": rows.token_types}
        if self.copies:
            fields |= self._corrupt_each(rows, copies[documents.numbers(rows.firsts)])
        else:
            fields |= self.corrupt(generator, rows, self.special)
        labels = {"label": [row.label for row in planned]} if "label" in self.features else {}
        aligned = {name: fields[name] for name in self.features if name not in labels}
        return apart(aligned, rows.sizes, labels)

    def _draws(
        self, documents: DocumentGroup, generator: np.random.Generator
    ) -> tuple[Int[np.ndarray, " D"], list[random.Random]]:
        """Return the copy number of each document in this epoch, and its random generator."""
        if not self.copies:
            draw = random.Random(int(generator.integers(2**63)))
            return np.zeros(0, np.int64), [draw] * len(documents)
        copies = generator.integers(self.copies, size=len(documents))
        texts = [
            documents.tokens[slice(*documents.piece(first, last))]
            for first, last in zip(documents.bounds, documents.bounds[1:], strict=False)
        ]
        seeds = [_hash(text, copy) for text, copy in zip(texts, copies, strict=True)]
        return copies, [random.Random(seed) for seed in seeds]

    def _corrupt_each(self, rows: TextRows, copies: Int[np.ndarray, " B"]) -> dict[str, np.ndarray]:
        """Like `corrupt`, with random numbers that depend only on a row's tokens and copy."""
        features = []
        for number, copy in enumerate(copies):
            row = TextRows(**{k: v[number : number + 1] for k, v in vars(rows).items()})
            generator = np.random.default_rng(_hash(row.tokens[0, : row.sizes[0]], copy))
            features.append(self.corrupt(generator, row, self.special))
        return {name: np.concatenate([of_row[name] for of_row in features]) for name in features[0]}


def _hash(tokens: Int[np.ndarray, " L"], copy: int) -> int:
    content = np.append(tokens, copy).astype(np.int32).tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def apart(
    aligned: Mapping[str, Int[np.ndarray, "B L"]],
    sizes: Int[np.ndarray, " B"],
    per_row: Mapping[str, Any] | None = None,
) -> list[Example]:
    """Return rows as examples without padding.

    Args:
        aligned: features with a value for each token.
        sizes: the number of tokens of each row.
        per_row: features with one value for each row, [B].
    """
    values = {name: np.asarray(rows, np.int32) for name, rows in aligned.items()}
    numbers = {name: np.asarray(row, np.int32)[:, None] for name, row in (per_row or {}).items()}
    return [
        {name: rows[index, :size] for name, rows in values.items()}
        | {name: of_rows[index] for name, of_rows in numbers.items()}
        for index, size in enumerate(sizes)
    ]


def objective_over_groups(
    name: str,
    *,
    row_format: Format,
    corrupt: CorruptRows,
    group: int,
    copies: int = 0,
    of: Mapping[str, Any] | None = None,
) -> Groups:
    """Make an encoder's objective over groups of documents.

    Args:
        name: the objective's name, also for messages.
        row_format: how rows are planned.
        corrupt: masks the tokens.
        group: the number of documents in a group.
        copies: see `Grouping`.
        of: what its examples contain, see `of_masked`; None for masked tokens with token types.

    Raises:
        ValueError: `group` is below 1 or `copies` below 0; when a run plans it, before anything is
            read, a length is below 8 or the vocabulary lacks [CLS], [SEP] or [MASK].
    """
    of = of or of_masked("token_types")
    if copies < 0:
        raise ValueError(f"{name}: copies={copies} must be 0 or more")

    def rows_for(special: SpecialTokens, length: int) -> OfGroup:
        return Grouping(
            format=row_format,
            corrupt=corrupt,
            special=special,
            length=length,
            features=of["features"],
            copies=copies,
        )

    return objective_of_rows(name, rows_for, group=group, of=of)


def objective_of_rows(
    name: str,
    rows_for: Callable[[SpecialTokens, int], OfGroup],
    *,
    group: int,
    of: Mapping[str, Any],
) -> Groups:
    """Make an objective whose rows are made from groups of documents.

    Args:
        name: the objective's name, also for messages.
        rows_for: (special tokens, tokens per row) -> the function that makes the rows.
        group: the number of documents in a group.
        of: what its examples contain, see `of_masked`.

    Raises:
        ValueError: `group` is below 1; when a run plans it, before anything is read, a length is
            below 8 or the vocabulary lacks [CLS], [SEP] or [MASK].
    """
    if group < 1:
        raise ValueError(f"{name}: group={group} must be 1 or more")

    def plan(spec: ExampleSpec) -> OfGroup:
        length = spec.lengths.get("inputs") or 0
        if length < 8:
            raise ValueError(f"{name} needs lengths.inputs of 8 or more, got {length}")
        return rows_for(SpecialTokens(spec.features["inputs"].vocabulary), length)

    return Groups(name=name, plan=plan, documents=group, **of)
