"""A knowledge graph of triples, and its branches in a row (K-BERT, Liu et al. 2019).

A search finds the graph's entities in a row, and a sentence tree has branches after them.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from t5x_like import reading
from t5x_like.batches.labelled_rows import LONGEST_QUESTION, STRIDE, EncoderRow, RowWriter, Window
from t5x_like.names import hint
from t5x_like.reading.lines import FileName
from t5x_like.vocabularies import Vocabulary, check_special_tokens

COLUMNS = ("subject", "relation", "object")
SETTING = "data.objective_settings.graph"


class Triple(NamedTuple):
    """A fact: a subject has a relation to an object."""

    subject: str
    relation: str
    object: str


class Entity(NamedTuple):
    """An entity in a row.

    Attributes:
        start, end: the position of its first token, and the position after its last.
        triples: the triples with this subject, in the order of the file.
    """

    start: int
    end: int
    triples: Sequence[Triple]


class KnowledgeGraph:
    """The triples of a file, found by the tokens of their subjects.

    Subjects with a token that is special, or unknown to the vocabulary, are never found.

    Args:
        triples: in the order of the file.
        vocabulary: tokenizes the subjects; it has [CLS], [SEP] and [MASK].
        relations: whether a branch has the relation before the object, or only the object.

    Raises:
        ValueError: the vocabulary lacks [CLS], [SEP] or [MASK].
    """

    def __init__(self, triples: Sequence[Triple], vocabulary: Vocabulary, *, relations: bool):
        self._vocabulary, self._relations = check_special_tokens(vocabulary), relations
        self._starts_word = self._vocabulary.word_starts
        by_subject: dict[str, dict[Triple, None]] = {}
        for triple in triples:
            by_subject.setdefault(triple.subject, {})[triple] = None  # each once, in order
        self._triples: dict[tuple[int, ...], list[Triple]] = {}
        unfit = {*self._vocabulary.special_ids}
        for subject, of_subject in by_subject.items():
            tokens = tuple(vocabulary.encode(subject))
            if tokens and not unfit & {*tokens}:
                self._triples.setdefault(tokens, []).extend(of_subject)
        sizes: dict[int, set[int]] = {}
        for tokens in self._triples:
            sizes.setdefault(tokens[0], set()).add(len(tokens))
        self._sizes = {first: sorted(lengths, reverse=True) for first, lengths in sizes.items()}
        self._branches: dict[Triple, list[int]] = {}

    def find(self, tokens: Sequence[int]) -> list[Entity]:
        """Return the entities of a row from left to right, without overlaps: K-Query (equation 1).

        At each position the longest subject is taken; an entity consists of whole words.

        Args:
            tokens: the ids of a row, including special tokens.
        """
        entities, position = [], 0
        while position < len(tokens):
            size = self._longest(tokens, position)
            if size:
                triples = self._triples[tuple(tokens[position : position + size])]
                entities.append(Entity(position, position + size, triples))
            position += size or 1
        return entities

    def branch(self, triple: Triple) -> list[int]:
        """Return the tokens of a triple without its subject: relation and object, or the object."""
        if triple not in self._branches:
            parts = triple[1:] if self._relations else triple[2:]
            self._branches[triple] = self._vocabulary.encode(" ".join(parts))
        return self._branches[triple]

    def _longest(self, row: Sequence[int], start: int) -> int:
        """Return the number of tokens of the longest subject that begins at `start`, or 0."""
        if row[start] not in self._sizes or not self._starts_word[row[start]]:
            return 0
        for size in self._sizes[row[start]]:
            end = start + size
            ends_word = end >= len(row) or self._starts_word[row[end]]
            if ends_word and tuple(row[start:end]) in self._triples:
                return size
        return 0


def load(path: str, vocabulary: Vocabulary, *, relations: bool) -> KnowledgeGraph:
    """Load the knowledge graph of a file, cached per vocabulary until the file changes.

    Args:
        path: see `read`; "" for a graph without triples.
        vocabulary, relations: see `KnowledgeGraph`.

    Raises:
        ValueError: see `read` and `KnowledgeGraph`.
    """
    return _load(*_as_of(path), vocabulary, relations)


def digest(path: str) -> str:
    """Check a graph's file and return its hash; "" for no graph.

    Raises:
        ValueError: see `read`.
    """
    file, changed = _as_of(path)
    if file:
        _read(file, changed)
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    return ""


_Changed = tuple[int, int]  # time of modification in nanoseconds, bytes


def _as_of(path: str) -> tuple[str, _Changed]:
    """Return the file of a graph, and its time of modification and size."""
    if not path:
        return "", (0, 0)
    file = Path(path).expanduser()
    if not file.is_file():
        endings = reading.with_endings(tuple(_READERS))
        beside = [other.name for other in file.parent.glob("*") if other.name.endswith(endings)]
        near = hint(file.name, beside) if beside else ""
        raise ValueError(f"{SETTING}={path!r} is not a file.{near}")
    status = file.stat()
    return str(file), (status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4)
def _load(path: str, changed: _Changed, vocabulary: Vocabulary, relations: bool) -> KnowledgeGraph:
    triples = _read(path, changed) if path else ()
    return KnowledgeGraph(triples, vocabulary, relations=relations)


@functools.lru_cache(maxsize=4)
def _read(path: str, changed: _Changed) -> tuple[Triple, ...]:
    del changed
    return tuple(read(path))


def read(path: FileName) -> list[Triple]:
    """Read the triples of a file, in order.

    | ending | a row |
    |---|---|
    | .spo | subject, relation and object, separated by tabs; no header, as in the released code |
    | .tsv | the same, with names in the first line, which sets their order |
    | .jsonl | an object {"subject": ..., "relation": ..., "object": ...} |

    Raises:
        ValueError: another ending, a row that is not of this form, other columns than these three,
            or no rows; the message begins with the file, and the line if it concerns one.
    """
    ending = os.path.splitext(reading.uncompressed(path))[1]
    if ending not in _READERS:
        raise ValueError(f"{SETTING}={str(path)!r} must end in one of {', '.join(_READERS)}")
    triples = list(_READERS[ending](path))
    if not triples:
        raise ValueError(f"{path} has no triple; set {SETTING}='' to train without a graph")
    return triples


def _spo(path: FileName) -> Iterator[Triple]:
    for where, line in reading.numbered(path):
        cells = line.split("\t")
        if len(cells) != len(COLUMNS):
            raise ValueError(
                f"{where}: it has {len(cells)} cells with tabs between, not the three "
                f"{', '.join(COLUMNS)}"
            )
        yield _triple(dict(zip(COLUMNS, cells, strict=True)), where=where)


def _tsv(path: FileName) -> Iterator[Triple]:
    for where, row in reading.tsv_rows(path, check=_check_columns):
        yield _triple(row, where=where)


def _jsonl(path: FileName) -> Iterator[Triple]:
    for where, row in reading.json_lines(path):
        _check_columns(list(row), where)
        yield _triple(row, where=where)


_READERS: dict[str, Callable[[FileName], Iterator[Triple]]] = {
    ".spo": _spo,
    ".tsv": _tsv,
    ".jsonl": _jsonl,
}


def _check_columns(names: Sequence[str], where: str) -> None:
    if sorted(names) != sorted(COLUMNS):
        raise ValueError(
            f"{where}: the columns of a graph must be {', '.join(COLUMNS)}, not "
            f"{', '.join(map(str, names)) or 'none'}"
        )


def _triple(row: Mapping[str, Any], *, where: str) -> Triple:
    for name in COLUMNS:
        if not isinstance(row[name], str) or not row[name].strip():
            raise ValueError(f"{where}: {name}={row[name]!r} must be a text")
    return Triple(*(row[name].strip() for name in COLUMNS))


_SHORTEST = 8  # tokens, as for rows without branches


@dataclasses.dataclass(frozen=True)
class TreeRow(EncoderRow):
    """A row of an encoder with branches.

    Attributes:
        soft_positions, branches, entities: see the top of this file.
        trunk: the positions in this row of the tokens that are not in branches.
    """

    soft_positions: Int[np.ndarray, " L"]
    branches: Int[np.ndarray, " L"]
    entities: Int[np.ndarray, " L"]
    trunk: Int[np.ndarray, " N"]

    @property
    def features(self) -> dict[str, np.ndarray]:
        """Return the features of an example, aligned with its tokens."""
        return super().features | {
            "soft_positions": self.soft_positions,
            "branches": self.branches,
            "entities": self.entities,
        }


@dataclasses.dataclass(frozen=True)
class TreeWindow(Window):
    """A question with a part of its context, and branches.

    Attributes:
        row: the row with branches; `first` and `nothing` are positions in the row without them.
    """

    row: TreeRow

    @property
    def context(self) -> Int[np.ndarray, " C"]:
        """Return the positions in the row of the part's tokens."""
        return self.row.trunk[super().context]

    def places(self, start: int, end: int) -> tuple[int, int]:
        """Return the first and last token in the row of the context's characters [start, end)."""
        first, last = super().places(start, end)
        return int(self.row.trunk[first]), int(self.row.trunk[last])

    def characters(self, first: int, last: int) -> tuple[int, int]:
        """Return the character range from one token of the row to another; inverts `places`."""
        return super().characters(*(int(n) for n in np.searchsorted(self.row.trunk, (first, last))))


class TreeWriter(RowWriter):
    """Writes texts as rows of at most `length` tokens with branches: K-Inject (equation 2).

    Without its branches, a row equals the row of a `RowWriter` of length - `reserved`: branches
    fill the remaining tokens from left to right, and a branch that does not fit is omitted whole.

    Args:
        length: tokens per row.
        graph: the path of the knowledge graph, see `knowledge_graph.read`; "" for no graph.
        branches: the most branches of an entity, made from its first triples in the file.
        relations: whether a branch has the relation before the object, or only the object.
        reserved: tokens of a row that only branches may fill.

    Raises:
        ValueError: see `RowWriter` and `knowledge_graph.load`; or a number is out of range.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        length: int,
        graph: str = "",
        branches: int = 2,
        relations: bool = True,
        reserved: int = 0,
    ):
        where = "data.objective_settings"
        if branches < 1:
            raise ValueError(f"{where}.branches={branches} must be 1 or more branches an entity")
        if reserved < 0 or (reserved and length - reserved < _SHORTEST):
            raise ValueError(
                f"{where}.reserved={reserved} must be 0 or more, and leave {_SHORTEST} or more of "
                f"the lengths.inputs={length} tokens of a row to the text"
            )
        super().__init__(vocabulary, length=length - reserved)
        self._most, self._longest_row, self._reserved = branches, length, reserved
        self._graph: KnowledgeGraph = load(graph, vocabulary, relations=relations)

    def of_text(self, text: str, second: str | None = None) -> TreeRow:
        """Return the row of one text or of two, with branches."""
        return self.graft(super().of_text(text, second))

    def of_words(self, words: Sequence[str]) -> tuple[TreeRow, Int[np.ndarray, " W"]]:
        """Return the row of some words, with branches, and the first token of each word, or -1."""
        row, first = super().of_words(words)
        tree = self.graft(row)
        return tree, np.where(first >= 0, tree.trunk[first], -1).astype(np.int32)

    def windows(  # type: ignore[override]
        self,
        question: str,
        context: str,
        *,
        stride: int = STRIDE,
        longest_question: int = LONGEST_QUESTION,
    ) -> list[TreeWindow]:
        """Return a window for each part of a context, with branches; see the base class."""
        windows = super().windows(
            question, context, stride=stride, longest_question=longest_question
        )
        trees = [self.graft(window.row) for window in windows]
        return [
            TreeWindow(tree, window.first, window.offsets, window.nothing)
            for tree, window in zip(trees, windows, strict=True)
        ]

    def check_windows(self, *, stride: int, longest_question: int) -> None:
        """Check that a window has room for some of the context, and for the reserved tokens.

        Raises:
            ValueError: it does not, or a setting is below 1.
        """
        try:
            super().check_windows(stride=stride, longest_question=longest_question)
        except ValueError as error:
            raise ValueError(f"{error} (without the reserved={self._reserved})") from error

    def graft(self, row: EncoderRow) -> TreeRow:
        """Add the branches of a row's entities that fit."""
        size = len(row.tokens)
        room = self._longest_row - size
        # For each token of the new row: its values, and the old token that it comes after.
        positions = np.arange(size, dtype=np.int32)
        of_entity = np.zeros(size, np.int32)
        pieces: list[tuple[int, int, list[int]]] = []  # the last token, the entity, the branch
        number = 0
        for entity in self._graph.find(row.tokens.tolist()):
            fitting = []
            for triple in entity.triples[: self._most]:
                tokens = self._graph.branch(triple)
                if 0 < len(tokens) <= room:
                    fitting.append(tokens)
                    room -= len(tokens)
            if fitting:
                number += 1
                of_entity[entity.start : entity.end] = number
                pieces += [(entity.end - 1, number, tokens) for tokens in fitting]
        return _flatten(row, positions, of_entity, pieces)


def _flatten(
    row: EncoderRow,
    positions: Int[np.ndarray, " N"],
    of_entity: Int[np.ndarray, " N"],
    pieces: list[tuple[int, int, list[int]]],
) -> TreeRow:
    """Write each branch after the last token of its entity."""
    sizes = np.array([len(tokens) for *_, tokens in pieces], np.int64)
    after = np.repeat(np.array([last for last, *_ in pieces], np.int64), sizes)
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    added = np.array([token for *_, tokens in pieces for token in tokens], np.int32)
    # A branch comes behind its entity.
    order = np.argsort(np.concatenate([positions, after]), kind="stable")

    def join(trunk: np.ndarray, branches: np.ndarray) -> np.ndarray:
        return np.concatenate([trunk, branches])[order].astype(np.int32)

    return TreeRow(
        tokens=join(row.tokens, added),
        token_types=join(row.token_types, row.token_types[after]),
        soft_positions=join(positions, after + 1 + within),
        branches=join(np.zeros_like(positions), np.repeat(np.arange(len(pieces)) + 1, sizes)),
        entities=join(of_entity, np.repeat([number for _, number, _ in pieces], sizes)),
        trunk=np.flatnonzero(order < len(positions)).astype(np.int32),
    )
