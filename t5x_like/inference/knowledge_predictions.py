"""Predictions of networks that read texts with branches of a knowledge graph."""

import dataclasses
from typing import Any

from t5x_like.batches.knowledge_graph import TreeWriter
from t5x_like.experiment.text_data import TextData
from t5x_like.inference.encoder_predictions import Answers, Classes, EncoderPrediction, Tags


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
    def settings_in(cls, text: TextData) -> dict[str, Any]:
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
class KnowledgeAnswers(_OfTrees, Answers):
    """The span of `context` that answers `question`, never part of a branch; see `Answers`."""

    reserved: int = 64
