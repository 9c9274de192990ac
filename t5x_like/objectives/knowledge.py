"""Labelled text with branches of a knowledge graph: classes, tags, answers (Liu et al. 2019).

Raw rows and settings are as in `labelled`, with further settings for the graph:

    graph      the path of a file of triples, see `batches.knowledge_graph.read`; "" for no graph
    branches   the most branches of an entity, 2 in the released code
    relations  whether a branch has the relation before the object; in the released code it does in
               classification, and does not in tagging
    reserved   tokens of a row that only branches may fill, which shortens a text that is too long

Examples also have `soft_positions`, `branches` and `entities`, see `batches.sentence_trees`.
Branches have no tag, no answer and no loss.
"""

import functools
from typing import Any

from t5x_like.batches import knowledge_graph
from t5x_like.batches.knowledge_graph import TreeWriter
from t5x_like.batches.labelled_rows import LONGEST_QUESTION, STRIDE
from t5x_like.objectives.labelled import (
    OF_ANSWERS,
    OF_CLASSES,
    OF_TAGS,
    objective_of_rows,
    write_answers,
    write_classes,
    write_tags,
)
from t5x_like.objectives.objective import Rows, of_encoder


def knowledge_classification(
    *, graph: str = "", branches: int = 2, relations: bool = True, reserved: int = 0
) -> Rows:
    """Predict a class of a text or of a pair, with branches of knowledge.

    inputs:         [CLS] cook visits beijing capital china now [SEP]
    soft_positions: 0     1    2      3       4       5     4   5
    branches:       0     0    0      0       1       1     0   0
    entities:       0     0    0      1       1       1     0   0
    label:          the class

    Raises:
        ValueError: the graph cannot be read, or a number is out of range.
    """
    return _objective(
        "knowledge_classification",
        OF_CLASSES,
        write_classes,
        of=("label",),
        graph=graph,
        branches=branches,
        relations=relations,
        reserved=reserved,
    )


def knowledge_tagging(
    *, graph: str = "", branches: int = 2, relations: bool = False, reserved: int = 0
) -> Rows:
    """Predict a tag for each word of the text; branches have no tags.

    inputs:       [CLS] cook visits beijing china now [SEP]
    targets:      0     1    0      2       0     0   0
    loss_weights: 0     1    1      1       0     1   0

    Raises:
        ValueError: see `knowledge_classification`.
    """
    return _objective(
        "knowledge_tagging",
        OF_TAGS,
        write_tags,
        of=("targets", "loss_weights"),
        graph=graph,
        branches=branches,
        relations=relations,
        reserved=reserved,
    )


def knowledge_question_answering(
    *,
    stride: int = STRIDE,
    longest_question: int = LONGEST_QUESTION,
    graph: str = "",
    branches: int = 2,
    relations: bool = True,
    reserved: int = 64,
) -> Rows:
    """Predict where in a context the answer begins and ends; it is never in a branch.

    Args:
        stride, longest_question: see `question_answering`.

    Raises:
        ValueError: see `knowledge_classification`.
    """
    return _objective(
        "knowledge_question_answering",
        OF_ANSWERS,
        functools.partial(write_answers, stride=stride, longest_question=longest_question),
        of=("answer",),
        graph=graph,
        branches=branches,
        relations=relations,
        reserved=reserved,
    )


def _objective(
    name: str,
    fields: tuple[str, ...],
    write_for: Any,
    *,
    of: tuple[str, ...],
    **settings: Any,
) -> Rows:
    return objective_of_rows(
        name,
        fields,
        write_for,
        of=of_encoder("token_types", "soft_positions", "branches", "entities", *of),
        make_writer=functools.partial(TreeWriter, **settings),
        content=functools.partial(knowledge_graph.digest, settings["graph"]),
    )
