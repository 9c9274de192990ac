"""Preprocessors are traced once for the same data, and anew where something may have changed."""

import copy

import pytest
import seqio
import tensorflow as tf

from t5x_like import vocabularies
from t5x_like.preprocessing import seqio_objectives, tracing
from t5x_like.preprocessing.sources import ColumnSource, columns
from t5x_like.preprocessing.streams import Reading, TaskReader
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from t5x_like.preprocessing.tracing import hash_of_operations

TEXTS = ColumnSource(lambda split: columns([{"text": "a b c"}]), splits=("train",))


def reader(preprocessors, features, *, source=TEXTS, length=8, vocabulary=None):
    """A reader of a task that is not registered."""
    vocabulary = TaskVocabulary(vocabulary or vocabularies.load("bytes"))
    task = seqio.Task(
        "traced",
        source=source,
        preprocessors=preprocessors,
        output_features={name: seqio.Feature(vocabulary) for name in features},
    )
    reading = Reading(
        split="train",
        lengths=dict.fromkeys(features, length),
        seed=0,
        shuffle=False,
        repeat=True,
        shuffle_buffer=40,
        shards=1,
    )
    return TaskReader(task, reading=reading, features=tuple(features))


def test_the_same_data_are_traced_once_but_for_functions_of_a_user():
    def traced(objective, preprocessors, length=3):
        return reader(preprocessors, objective.features, length=length)._preprocess

    def build():
        return seqio_objectives.build("language_modeling")

    own = build()
    first = traced(own, own.preprocessors)
    assert build() is own
    assert traced(build(), build().preprocessors) is first
    assert traced(own, own.preprocessors, length=4) is not first

    factor = 1

    def scaled(dataset):
        return dataset.map(lambda example: {"targets": factor * example["targets"]})

    with_users = [*own.preprocessors, scaled]
    before = hash_of_operations(traced(own, with_users).graph.as_graph_def())
    factor = 3
    assert hash_of_operations(traced(own, with_users).graph.as_graph_def()) != before


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("comparisons", {"prompt": "a", "responses": ["b", "c"], "ranks": [1, 2]}),
        ("prompts", {"inputs": "a"}),
    ],
)
def test_rows_that_python_writes_are_those_of_any_process(name, row):
    """A run goes on in another process, where the vocabulary is another object."""

    def fingerprint():
        tracing._trace_once.cache_clear()
        objective = seqio_objectives.build(name)
        source = ColumnSource(lambda split: columns([row]), splits=("train",))
        another = copy.copy(vocabularies.load("bytes"))
        made = reader(
            objective.preprocessors, objective.features, source=source, vocabulary=another
        )
        return made.fingerprint

    assert fingerprint() == fingerprint()


def test_a_constant_with_an_address_is_refused():
    def named(dataset):
        return dataset.map(lambda example: {"targets": [tf.strings.length(identity)]})

    identity = "<mine.Writer at work>"
    assert reader([named], ["targets"]).fingerprint
    identity = str([object()])
    with pytest.raises(ValueError, match=r"contains <object object at 0x\w+>, .* no run could"):
        reader([named], ["targets"]).fingerprint  # noqa: B018  (an attribute that is computed)


def test_an_objective_that_names_a_file_is_made_anew(tmp_path):
    graph = tmp_path / "graph.tsv"
    graph.write_text("subject\trelation\tobject\ncook\tis\tperson\n")
    before = seqio_objectives.build("knowledge_classification", graph=str(graph))
    assert seqio_objectives.build("knowledge_classification", graph=str(graph)) is not before
