"""Encoder objectives over groups of documents: tokens -> rows by a format -> masks, in NumPy.

A group is a number of consecutive documents of a shard; text from other documents comes from the
same group. One call of a stateless Python function makes all rows of a group: they depend only on
the documents and the group's seed, so that a position in the data can be restored as for any other
preprocessor. No document is dropped, and a row of several documents ends with the group.
"""

import dataclasses
import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import seqio
import tensorflow as tf
from jaxtyping import Int

from t5x_like.batches.encoder_rows import SpecialTokens, TextRows, lay_out
from t5x_like.batches.objective_examples import examples_of
from t5x_like.preprocessing.objectives.masked import sentences
from t5x_like.preprocessing.objectives.masked.formats import Documents, Format
from t5x_like.preprocessing.objectives.objective import Objective, make
from t5x_like.preprocessing.objectives.running_text.lengths import Lengths, OutputFeatures

# (random generator, rows, special tokens) -> the features that masking changes or adds, [B, L]:
# "inputs", "loss_weights" and others. Targets are the original text.
Corrupt = Callable[[np.random.Generator, TextRows, SpecialTokens], dict[str, np.ndarray]]


class GroupRows(Protocol):
    """Makes the rows of a group of documents."""

    @property
    def aligned(self) -> tuple[str, ...]:
        """The features with a value for each token, in order."""

    @property
    def whole(self) -> tuple[str, ...]:
        """The features of a row as a whole, in order."""

    def __call__(
        self,
        tokens: Int[np.ndarray, " T"],
        lengths: Int[np.ndarray, " S"],
        counts: Int[np.ndarray, " D"],
        seed: Int[np.ndarray, "2"],
    ) -> tuple[Int[np.ndarray, "B C L"], Int[np.ndarray, " B"], Int[np.ndarray, "B W"]]:
        """Return the aligned features of each row, its size in tokens, and its features as a whole.

        Args:
            tokens: the tokens of all documents, one after the other.
            lengths: the tokens of each sentence.
            counts: the sentences of each document.
            seed: determines all random numbers.
        """


@dataclasses.dataclass(frozen=True)
class Grouping:
    """Makes rows in a format, and masks them.

    Attributes:
        format: the format of the rows.
        corrupt: masks the tokens.
        special: the special tokens of the vocabulary.
        length: tokens per row.
        features: all features of an example, a label last.
        copies: 0 for new masks at every epoch (RoBERTa's dynamic masking). N for static masking:
            the mask of a row depends on its tokens and on one of N numbers, sampled at each epoch;
            the division of documents into rows likewise.
    """

    format: Format
    corrupt: Corrupt
    special: SpecialTokens
    length: int
    features: tuple[str, ...]
    copies: int = 0

    @property
    def aligned(self) -> tuple[str, ...]:
        """The features with a value for each token, in order."""
        return tuple(name for name in self.features if name != "label")

    @property
    def whole(self) -> tuple[str, ...]:
        """The label, if examples have one."""
        return ("label",) if "label" in self.features else ()

    def __call__(
        self,
        tokens: Int[np.ndarray, " T"],
        lengths: Int[np.ndarray, " S"],
        counts: Int[np.ndarray, " D"],
        seed: Int[np.ndarray, "2"],
    ) -> tuple[Int[np.ndarray, "B C L"], Int[np.ndarray, " B"], Int[np.ndarray, "B W"]]:
        """See `GroupRows`."""
        room = self.length - self.format.special_count
        documents = Documents.of(tokens, lengths, counts, longest=room)
        generator = np.random.default_rng(seed.astype(np.uint32))
        copies, draws = self._draws(documents, generator)
        planned = self.format.plan(documents, room, draws)
        if not planned:
            none = np.zeros([0, len(self.aligned), self.length], np.int32)
            return none, np.zeros(0, np.int32), np.zeros([0, len(self.whole)], np.int32)
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
        out = np.stack([fields[name] for name in self.aligned], axis=1).astype(np.int32)
        labels = np.array([[row.label] * len(self.whole) for row in planned], np.int32)
        return out, rows.sizes, labels

    def _draws(
        self, documents: Documents, generator: np.random.Generator
    ) -> tuple[Int[np.ndarray, " D"], list[random.Random]]:
        """Return the copy number of each document in this epoch, and its random generator."""
        if not self.copies:
            one = random.Random(int(generator.integers(2**63)))
            return np.zeros(0, np.int64), [one] * len(documents)
        copies = generator.integers(self.copies, size=len(documents))
        texts = [
            documents.tokens[slice(*documents.piece(first, last))]
            for first, last in zip(documents.bounds, documents.bounds[1:], strict=False)
        ]
        seeds = [_hash(text, copy) for text, copy in zip(texts, copies, strict=True)]
        return copies, [random.Random(seed) for seed in seeds]

    def _corrupt_each(self, rows: TextRows, copies: Int[np.ndarray, " B"]) -> dict[str, np.ndarray]:
        """Like `corrupt`, with random numbers that depend only on a row's tokens and copy."""
        found = []
        for row, copy in enumerate(copies):
            one = TextRows(**{k: v[row : row + 1] for k, v in vars(rows).items()})
            generator = np.random.default_rng(_hash(one.tokens[0, : one.sizes[0]], copy))
            found.append(self.corrupt(generator, one, self.special))
        return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def _hash(tokens: Int[np.ndarray, " L"], copy: int) -> int:
    content = np.append(tokens, copy).astype(np.int32).tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def objective_over_groups(
    name: str,
    *,
    row_format: Format,
    corrupt: Corrupt,
    settings: Mapping[str, object],
) -> Objective:
    """Make an encoder's objective over groups of documents.

    Args:
        name: the objective's name, also for messages.
        row_format: how rows are planned.
        corrupt: masks the tokens.
        settings: all settings of the objective, including `group` and optionally `copies`.

    Raises:
        ValueError: `group` is below 1 or `copies` below 0; when the dataset is built, before
            anything is read, a length is below 8 or the vocabulary lacks [CLS], [SEP] or [MASK].
    """
    features = examples_of(name, settings).features
    own: dict[str, Any] = {key: settings[key] for key in ("copies",) if key in settings}
    if own.get("copies", 0) < 0:
        raise ValueError(f"{name}: copies={own['copies']} must be 0 or more")

    def rows_for(special: SpecialTokens, length: int) -> GroupRows:
        return Grouping(
            format=row_format,
            corrupt=corrupt,
            special=special,
            length=length,
            features=features,
            **own,
        )

    return objective_of_rows(name, rows_for, settings=settings)


def objective_of_rows(
    name: str,
    rows_for: Callable[[SpecialTokens, int], GroupRows],
    *,
    settings: Mapping[str, Any],
) -> Objective:
    """Make an objective whose rows are made from groups of documents.

    Args:
        name: the objective's name, also for messages.
        rows_for: (special tokens, tokens per row) -> the function that makes the rows.
        settings: all settings of the objective; `group` is the number of documents in a group.

    Raises:
        ValueError: `group` is below 1; when the dataset is built, before anything is read, a length
            is below 8 or the vocabulary lacks [CLS], [SEP] or [MASK].
    """
    group = settings["group"]
    if group < 1:
        raise ValueError(f"{name}: group={group} must be 1 or more")

    def make_rows(
        dataset: tf.data.Dataset, sequence_length: Lengths, output_features: OutputFeatures
    ) -> tf.data.Dataset:
        length = (sequence_length or {}).get("inputs") or 0
        if length < 8:
            raise ValueError(f"{name} needs lengths.inputs of 8 or more, got {length}")
        vocabulary = output_features["inputs"].vocabulary.plain
        fingerprint = f"{name} {dict(settings)} {length} {vocabulary}"
        rows = rows_for(SpecialTokens(vocabulary), length)
        return _rows(dataset, rows, group=group, length=length, fingerprint=fingerprint)

    return make(name, (sentences.tokenize, make_rows), settings)


def _rows(
    dataset: tf.data.Dataset, rows: GroupRows, *, group: int, length: int, fingerprint: str
) -> tf.data.Dataset:
    def call(
        tokens: np.ndarray, lengths: np.ndarray, counts: np.ndarray, seed: np.ndarray, _: bytes
    ) -> tuple[np.ndarray, ...]:
        aligned, sizes, whole = rows(tokens, lengths, counts, seed)
        return aligned, sizes, *np.ascontiguousarray(whole.T)

    @seqio.map_over_dataset(num_seeds=1)
    def of_group(group: dict[str, tf.Tensor], seed: tf.Tensor) -> tuple[tf.Tensor, ...]:
        # Not ragged if all documents have the same length.
        tokens, lengths = (
            one if isinstance(one, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(one)
            for one in (group["tokens"], group["sentence_lengths"])
        )
        arguments = [tokens.flat_values, lengths.flat_values, lengths.row_lengths(), seed]
        types = [tf.int32] * (2 + len(rows.whole))
        out = tf.numpy_function(call, [*arguments, tf.constant(fingerprint)], types, stateful=False)
        out[0].set_shape([None, len(rows.aligned), length])
        for tensor in out[1:]:
            tensor.set_shape([None])
        return tuple(out)

    def of_row(aligned: tf.Tensor, size: tf.Tensor, *whole: tf.Tensor) -> dict[str, tf.Tensor]:
        cut = aligned[:, :size]
        fields = {name: cut[index] for index, name in enumerate(rows.aligned)}
        return fields | {name: x[None] for name, x in zip(rows.whole, whole, strict=True)}

    wanted = {name: dataset.element_spec[name] for name in ("tokens", "sentence_lengths")}
    dataset = dataset.map(lambda example: {name: example[name] for name in wanted})
    groups = of_group(dataset.ragged_batch(group))
    return groups.unbatch().map(of_row, num_parallel_calls=tf.data.AUTOTUNE)
