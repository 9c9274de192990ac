"""Preprocessors are traced once for the same data, and anew where something may have changed."""

import seqio
import tensorflow as tf

from t5x_like import vocabularies
from t5x_like.preprocessing import objectives
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


def test_an_objective_that_names_a_file_is_made_anew(tmp_path):
    graph = tmp_path / "graph.tsv"
    graph.write_text("subject\trelation\tobject\ncook\tis\tperson\n")
    before = objectives.build("knowledge_classification", graph=str(graph))
    assert objectives.build("knowledge_classification", graph=str(graph)) is not before
