"""Read the examples of one shard of a corpus, epoch after epoch, starting from any position.

grain reads, cleans and tokenizes the documents of one epoch of one shard in background threads. The
order is a permutation of all documents, by grain's index shuffle, which needs no buffer. An
objective makes its examples of a unit: a chunk of tokens, or a group of documents. A position is a
few numbers: the document and the item in it at which the next unit begins. (It includes no state of
grain, whose window shuffle is restored wrongly in the middle of a window.)
"""

import collections
import dataclasses
import functools
import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.batches.conversion import Example
from t5x_like.batches.sharded_batches import NoExampleError, Reading
from t5x_like.grain_pipeline.corpus import Split
from t5x_like.grain_pipeline.tensorflow_values import dataset_words
from t5x_like.grain_pipeline.units import Items, UnitReader

_THREADS, _AHEAD = 4, 64  # threads that read documents, and documents that they read ahead
_SEEDS_AT_ONCE = 64  # units


@dataclasses.dataclass(frozen=True)
class DocumentReader:
    """A corpus with the settings for reading it.

    Attributes:
        task: the name of the corpus.
        split: the documents.
        units: what examples are made of.
        reading: the settings.
        identity: everything that decides the examples of a document.
    """

    task: str
    split: Split
    units: UnitReader
    reading: Reading
    identity: str

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of what decides the examples, except the settings and the files' content."""
        parts = (self.identity, len(self.split.rows), self.split.held_out, self.split.identity)
        return f"grain-{zlib.crc32(repr(parts).encode()):08x}"

    def stream(self, *, shard: int) -> "DocumentStream":
        """Return a stream of the examples of a shard, from the first example."""
        return DocumentStream(self, shard=shard)

    def documents(self, *, shard: int, epoch: int, first: int) -> Iterator[Items]:
        """Yield the items of each document of a shard from index `first`; some have none."""
        import grain  # takes seconds, and only reading needs it

        numbers = grain.MapDataset.range(len(self.split.rows))
        if self.reading.shuffle and len(numbers):
            numbers = numbers.shuffle(seed=self.reading.seed_for(self.task, epoch))
        mine = numbers[shard :: self.reading.shards][first:].map(self.units.items)
        options = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_AHEAD)
        return iter(mine.to_iter_dataset(options))

    def seeds(self, *, shard: int, epoch: int, first: int) -> np.ndarray:
        """Return the pairs of seeds of units from index `first`: int64 [units, 2]."""
        # `seqio.map_over_dataset` counts up in the same way from the seed of the preprocessors.
        begin = self.reading.seed_for(self.task, epoch, shard, 1)
        return dataset_words((begin, begin + 1), first=first, count=_SEEDS_AT_ONCE).T


class DocumentStream:
    """An iterator over the examples of one shard of a corpus.

    Attributes:
        examples: the number of examples returned so far.
        tokens: the number of tokens in their inputs and targets.
    """

    def __init__(self, reader: DocumentReader, *, shard: int):
        self.examples = self.tokens = 0
        self._documents: Iterator[Items] | None = None
        self._reader, self._shard = reader, shard
        self._begin_at(epoch=0, unit=0, document=0, offset=0, returned=0)

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
        while self._returned >= len(self._made):
            if not self._next_unit():
                if not self._reader.reading.repeat:
                    return None
                if not self._any:
                    raise NoExampleError(self._reader.task, self._reader.reading, shard=self._shard)
                self._begin_at(epoch=self._epoch + 1, unit=0, document=0, offset=0, returned=0)
        example = self._made[self._returned]
        self._returned += 1
        self.examples += 1
        self.tokens += sum(len(example[name]) for name in ("inputs", "targets") if name in example)
        return example

    def state(self) -> dict[str, Any]:
        """Return the position, a few numbers."""
        return self._begun | {
            "returned": self._returned,
            "drawn": self.examples,
            "tokens": self.tokens,
            "fingerprint": self._reader.fingerprint,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a position that an equal stream saved.

        Raises:
            ValueError: the documents, the vocabulary or the objective have changed.
        """
        task = self._reader.task
        if "chunk" in state:  # an earlier version, whose fingerprint was made of other things
            state = {**state, "unit": state["chunk"], "returned": 0}
            logging.warning(
                "the data position of task %r is of an earlier version: noise is sampled anew", task
            )
        elif state["fingerprint"] != self._reader.fingerprint:
            raise ValueError(
                f"the data position of task {task!r} cannot be restored: the number "
                "of documents, the vocabulary, the objective or what reads the text has changed "
                "since it was saved"
            )
        self.examples, self.tokens = state["drawn"], state["tokens"]
        names = ("epoch", "unit", "document", "offset", "returned")
        self._begin_at(**{name: state[name] for name in names})
        if state["returned"]:
            self._next_unit()
            self._returned = state["returned"]

    def _begin_at(
        self, *, epoch: int, unit: int, document: int, offset: int, returned: int
    ) -> None:
        self._epoch, self._unit = epoch, unit  # the next unit, and where it begins
        self._document, self._offset = document, offset
        self._any = bool(unit or returned)  # whether the epoch has had an example
        self._documents = None
        self._parts: collections.deque[Items] = collections.deque()  # from `_document` on
        self._size = -offset  # items in the parts that are not yet in a unit
        self._seeds: tuple[int, np.ndarray] = (-1, np.zeros([0, 2], np.int64))
        self._made: Sequence[Example] = ()  # the examples of the last unit
        self._returned = 0
        self._begun = self._beginning()

    def _beginning(self) -> dict[str, int]:
        """Return where the next unit begins."""
        return {
            "epoch": self._epoch,
            "unit": self._unit,
            "document": self._document,
            "offset": self._offset,
        }

    def _next_unit(self) -> bool:
        """Make the examples of the next unit, possibly none; False at the end of the epoch."""
        begun, parts = self._beginning(), self._take()
        if not parts:
            return False
        generator = np.random.default_rng(self._seeds_of(self._unit).astype(np.uint32))
        self._made, self._returned = self._reader.units.examples(parts, generator), 0
        self._begun, self._any = begun, self._any or bool(self._made)
        self._unit += 1
        return True

    def _take(self) -> list[Items]:
        """Return the items of the next unit, in parts; the last may have fewer, the end none."""
        self.begin()
        assert self._documents is not None  # for the type checker
        wanted = self._reader.units.size
        while self._size < wanted:
            document = next(self._documents, None)
            if document is None:
                break
            self._parts.append(document)
            self._size += len(document)
        taken, missing = [], wanted
        while missing and self._parts:
            part = self._parts[0][self._offset : self._offset + missing]
            if len(part):
                taken.append(part)
            missing -= len(part)
            self._offset += len(part)
            if self._offset == len(self._parts[0]):
                self._parts.popleft()
                self._document, self._offset = self._document + 1, 0
        self._size -= wanted - missing
        return taken

    def _seeds_of(self, unit: int) -> np.ndarray:
        """Return the pair of seeds of a unit of this epoch, computed for several at once."""
        block, index = divmod(unit, _SEEDS_AT_ONCE)
        if block != self._seeds[0]:
            first = block * _SEEDS_AT_ONCE
            seeds = self._reader.seeds(shard=self._shard, epoch=self._epoch, first=first)
            self._seeds = block, seeds
        return self._seeds[1][index]
