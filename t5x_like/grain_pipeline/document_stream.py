"""Read the examples of one shard of a corpus, epoch after epoch, starting from any position.

grain reads, cleans and tokenizes the documents of one epoch of one shard in background threads. The
order is a permutation of all documents, by grain's index shuffle, which needs no buffer. A position
is a few numbers: the document and the token in it at which the next chunk begins. (It includes no
state of grain, whose window shuffle is restored wrongly in the middle of a window.)
"""

import collections
import dataclasses
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from t5x_like.batches.conversion import Example
from t5x_like.batches.task_reading import NoExampleError, Reading
from t5x_like.grain_pipeline.chunk_objectives import SEEDS, ChunkObjective
from t5x_like.grain_pipeline.corpus import Split
from t5x_like.grain_pipeline.philox import dataset_words
from t5x_like.grain_pipeline.tokenized_documents import Pieces
from t5x_like.vocabularies import Vocabulary

_THREADS, _AHEAD = 4, 64  # threads that read documents, and documents that they read ahead
_SEEDS_AT_ONCE = 64  # chunks


@dataclasses.dataclass(frozen=True)
class DocumentReader:
    """A corpus with the settings for reading it.

    Attributes:
        task: the name of the corpus.
        split: the documents.
        objective: makes the examples.
        vocabulary: the vocabulary of the tokens.
        reading: the settings.
        pieces: the function from the index of a row to the tokens of its pieces.
    """

    task: str
    split: Split
    objective: ChunkObjective
    vocabulary: Vocabulary
    reading: Reading
    pieces: Callable[[int], Pieces]

    @property
    def chunk_length(self) -> int:
        """The tokens of a chunk; raises ValueError if the lengths do not fit."""
        return self.objective.chunk_length(self.reading.lengths, self.vocabulary)

    @property
    def fingerprint(self) -> str:
        """A hash of what decides the examples, except the settings and the files' content."""
        parts = (self.vocabulary.digest, self.objective, len(self.split.rows), self.split.held_out)
        return f"grain-{zlib.crc32(repr(parts).encode()):08x}"

    def stream(self, *, shard: int) -> "DocumentStream":
        """Return a stream of the examples of a shard, from the first example."""
        return DocumentStream(self, shard=shard)

    def documents(self, *, shard: int, epoch: int, first: int) -> Iterator[np.ndarray]:
        """Yield the tokens of each document of a shard from index `first`: int32 [L], or empty."""
        import grain  # takes seconds, and only reading needs it

        numbers = grain.MapDataset.range(len(self.split.rows))
        if self.reading.shuffle and len(numbers):
            numbers = numbers.shuffle(seed=self.reading.seed_for(self.task, epoch))
        mine = numbers[shard :: self.reading.shards][first:].map(self._tokens)
        options = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_AHEAD)
        return iter(mine.to_iter_dataset(options))

    def seeds(self, *, shard: int, epoch: int, first: int) -> np.ndarray:
        """Return the pairs of seeds of chunks from index `first`: int64 [chunks, SEEDS, 2]."""
        # `seqio.map_over_dataset` counts up in the same way from the seed of the preprocessors.
        begin = self.reading.seed_for(self.task, epoch, shard, 1)
        words = dataset_words(range(begin, begin + 2 * SEEDS), first=first, count=_SEEDS_AT_ONCE)
        return np.moveaxis(words.reshape(SEEDS, 2, -1), 2, 0)

    def _tokens(self, number: int) -> np.ndarray:
        return self.objective.join(self.pieces(number), self.vocabulary)


class DocumentStream:
    """An iterator over the examples of one shard of a corpus.

    Attributes:
        examples: the number of examples returned so far.
        tokens: the number of tokens in their inputs and targets.
    """

    def __init__(self, reader: DocumentReader, *, shard: int):
        self.examples = self.tokens = 0
        self._documents: Iterator[np.ndarray] | None = None
        self._reader, self._shard, self._length = reader, shard, reader.chunk_length
        self._begin_at(epoch=0, chunk=0, document=0, offset=0)

    def begin(self) -> None:
        """Begin to read in the background, if that has not begun."""
        if self._documents is None:
            self._documents = self._reader.documents(
                shard=self._shard, epoch=self._epoch, first=self._document
            )

    def next(self) -> Example | None:
        """Return the next example; None at the end if the data is not repeated.

        Raises:
            NoExampleError: the data is to be repeated, but the shard has no examples.
        """
        while not (chunk := self._next_chunk()).size:
            if not self._reader.reading.repeat:
                return None
            if not self._chunk:
                raise NoExampleError(self._reader.task, self._reader.reading, shard=self._shard)
            self._begin_at(epoch=self._epoch + 1, chunk=0, document=0, offset=0)
        seeds = self._seeds_of(self._chunk)
        example = self._reader.objective.example(chunk, seeds, self._reader.vocabulary)
        self._chunk += 1
        self.examples += 1
        self.tokens += sum(map(len, example.values()))
        return example

    def state(self) -> dict[str, Any]:
        """Return the position, a few numbers."""
        return {
            "epoch": self._epoch,
            "chunk": self._chunk,
            "document": self._document,
            "offset": self._offset,
            "drawn": self.examples,
            "tokens": self.tokens,
            "fingerprint": self._reader.fingerprint,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a position that an equal stream saved.

        Raises:
            ValueError: the documents, the vocabulary or the objective have changed.
        """
        if state["fingerprint"] != self._reader.fingerprint:
            raise ValueError(
                f"the data position of task {self._reader.task!r} cannot be restored: the number "
                "of documents, the vocabulary, the objective or what reads the text has changed "
                "since it was saved"
            )
        self.examples, self.tokens = state["drawn"], state["tokens"]
        self._begin_at(**{name: state[name] for name in ("epoch", "chunk", "document", "offset")})

    def _begin_at(self, *, epoch: int, chunk: int, document: int, offset: int) -> None:
        self._epoch, self._chunk = epoch, chunk
        self._document, self._offset = document, offset  # where the next chunk begins
        self._documents = None
        self._parts: collections.deque[np.ndarray] = collections.deque()  # from `_document` on
        self._size = -offset  # tokens in the parts that are not yet in a chunk
        self._seeds: tuple[int, np.ndarray] = (-1, np.zeros([0, SEEDS, 2], np.int64))

    def _next_chunk(self) -> np.ndarray:
        """Return the next chunk of the epoch; the last may be shorter, and the end is empty."""
        self.begin()
        assert self._documents is not None  # for the type checker
        while self._size < self._length:
            document = next(self._documents, None)
            if document is None:
                break
            self._parts.append(document)
            self._size += len(document)
        taken, missing = [np.zeros(0, np.int32)], self._length
        while missing and self._parts:
            part = self._parts[0][self._offset : self._offset + missing]
            taken.append(part)
            missing -= len(part)
            self._offset += len(part)
            if self._offset == len(self._parts[0]):
                self._parts.popleft()
                self._document, self._offset = self._document + 1, 0
        self._size -= self._length - missing
        return np.concatenate(taken)

    def _seeds_of(self, chunk: int) -> np.ndarray:
        """Return the pairs of seeds of a chunk of this epoch, computed for several at once."""
        block, index = divmod(chunk, _SEEDS_AT_ONCE)
        if block != self._seeds[0]:
            first = block * _SEEDS_AT_ONCE
            made = self._reader.seeds(shard=self._shard, epoch=self._epoch, first=first)
            self._seeds = block, made
        return self._seeds[1][index]
