"""Insert branches of knowledge after the entities of a row: sentence trees (Liu et al. 2019).

A tree is written as one row, with each branch after its entity. Three numbers for each token
preserve the structure:

                    [CLS] cook visits beijing capital china now [SEP]
    soft_positions  0     1    2      3       4       5     4   5
    branches        0     0    0      0       1       1     0   0
    entities        0     0    0      1       1       1     0   0

The soft position is the depth in the tree: a branch continues from its entity, and so does the
trunk, as if there were no branch. `branches` numbers the branches of a row; `entities` numbers the
entities, with the same number on an entity and on its branches.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from t5x_like.batches.knowledge_graph import KnowledgeGraph, load
from t5x_like.batches.labelled_rows import LONGEST_QUESTION, STRIDE, Row, RowWriter, Window
from t5x_like.vocabularies import Vocabulary

_SHORTEST = 8  # tokens, as for rows without branches


@dataclasses.dataclass(frozen=True)
class TreeRow(Row):
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
        row: the row with branches; `first` is the position of the part's first token without them.
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
        self._most, self._whole, self._reserved = branches, length, reserved
        self._graph: KnowledgeGraph = load(graph, vocabulary, relations=relations)

    def of_text(self, text: str, second: str | None = None) -> TreeRow:
        """Return the row of one text or of two, with branches."""
        return self.graft(super().of_text(text, second))

    def of_words(self, words: Sequence[str]) -> tuple[TreeRow, Int[np.ndarray, " W"]]:
        """Return the row of some words, with branches, and the first token of each word, or 0."""
        row, first = super().of_words(words)
        tree = self.graft(row)
        return tree, np.where(first > 0, tree.trunk[first], 0).astype(np.int32)

    def windows(  # type: ignore[override]
        self,
        question: str,
        context: str,
        *,
        stride: int = STRIDE,
        longest_question: int = LONGEST_QUESTION,
    ) -> list[TreeWindow]:
        """Return a window for each part of a context, with branches; see the base class."""
        found = super().windows(question, context, stride=stride, longest_question=longest_question)
        return [TreeWindow(self.graft(one.row), one.first, one.offsets) for one in found]

    def check_windows(self, *, stride: int, longest_question: int) -> None:
        """Check that a window has room for some of the context, and for the reserved tokens.

        Raises:
            ValueError: it does not, or a setting is below 1.
        """
        try:
            super().check_windows(stride=stride, longest_question=longest_question)
        except ValueError as error:
            raise ValueError(f"{error} (without the reserved={self._reserved})") from error

    def graft(self, row: Row) -> TreeRow:
        """Add the branches of a row's entities that fit."""
        size = len(row.tokens)
        room = self._whole - size
        # For each token of the new row: its values, and the old token that it comes after.
        own = np.arange(size, dtype=np.int32)
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
        return _flatten(row, own, of_entity, pieces)


def _flatten(
    row: Row,
    own: Int[np.ndarray, " N"],
    of_entity: Int[np.ndarray, " N"],
    pieces: list[tuple[int, int, list[int]]],
) -> TreeRow:
    """Write each branch after the last token of its entity."""
    sizes = np.array([len(tokens) for *_, tokens in pieces], np.int64)
    after = np.repeat(np.array([last for last, *_ in pieces], np.int64), sizes)
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    added = np.array([token for *_, tokens in pieces for token in tokens], np.int32)
    order = np.argsort(np.concatenate([own, after]), kind="stable")  # a branch behind its entity

    def join(trunk: np.ndarray, branches: np.ndarray) -> np.ndarray:
        return np.concatenate([trunk, branches])[order].astype(np.int32)

    return TreeRow(
        tokens=join(row.tokens, added),
        token_types=join(row.token_types, row.token_types[after]),
        soft_positions=join(own, after + 1 + within),
        branches=join(np.zeros_like(own), np.repeat(np.arange(len(pieces)) + 1, sizes)),
        entities=join(of_entity, np.repeat([number for _, number, _ in pieces], sizes)),
        trunk=np.flatnonzero(order < len(own)).astype(np.int32),
    )
