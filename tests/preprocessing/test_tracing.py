"""Preprocessors are traced once for the same data, and anew where something may have changed."""

import copy

import pytest
import seqio
import tensorflow as tf

from t5x_like import vocabularies
from t5x_like.preprocessing import objectives, tracing
from t5x_like.preprocessing.column_source import ColumnSource, columns
from t5x_like.preprocessing.streams import Reading, TaskReader
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from t5x_like.preprocessing.tracing import hash_of_operations


def one_text(split, shuffle_files, seed=None):
    return tf.data.Dataset.from_tensors({"text": "a b c"})


def test_the_same_data_are_traced_once_but_for_functions_of_a_user():
    def traced(objective, preprocessors, length=3):
        task = seqio.Task(
            "traced",
            source=seqio.FunctionDataSource(one_text, splits=["train"]),
            preprocessors=preprocessors,
            output_features={
                name: seqio.Feature(TaskVocabulary(vocabularies.load("bytes")))
                for name in objective.features
            },
        )
        reading = Reading(
            split="train",
            lengths={"targets": length},
            seed=0,
            shuffle=False,
            repeat=True,
            shuffle_buffer=40,
            shards=1,
        )
        return TaskReader(task, reading=reading, features=("targets",))._preprocess

    def build():
        return objectives.build("language_modeling")

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
        vocabulary = TaskVocabulary(copy.copy(vocabularies.load("bytes")))
        objective = objectives.build(name)
        task = seqio.Task(
            "written",
            source=ColumnSource(lambda split: columns([row]), splits=("train",)),
            preprocessors=objective.preprocessors,
            output_features={one: seqio.Feature(vocabulary) for one in objective.features},
        )
        reading = Reading(
            split="train",
            lengths=dict.fromkeys(("inputs", "targets", "pretraining"), 8),
            seed=0,
            shuffle=False,
            repeat=True,
            shuffle_buffer=40,
            shards=1,
        )
        return TaskReader(task, reading=reading, features=("inputs",)).fingerprint

    assert fingerprint() == fingerprint()


def test_an_objective_that_names_a_file_is_made_anew(tmp_path):
    graph = tmp_path / "graph.tsv"
    graph.write_text("subject\trelation\tobject\ncook\tis\tperson\n")
    before = objectives.build("knowledge_classification", graph=str(graph))
    assert objectives.build("knowledge_classification", graph=str(graph)) is not before
