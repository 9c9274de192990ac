"""Tasks of another seqio project, which knows nothing of this package, train by their names."""

import dataclasses
import importlib
import sys
import textwrap

import numpy as np
import pytest
import seqio

from configs import t5
from t5x_like import train, vocabularies
from t5x_like.batches import converters
from t5x_like.batches.data_modules import load
from t5x_like.config import parse
from t5x_like.experiment import reporting
from t5x_like.preprocessing import offline_cache
from t5x_like.preprocessing.pipeline import RegisteredTasks

# As people write them: TensorFlow preprocessors, seqio's own vocabulary, a source of lines.
PROJECT = """
import functools

import seqio
import tensorflow as tf

VOCABULARY = seqio.ByteVocabulary(extra_ids=0)


@seqio.map_over_dataset
def question(row):
    text, answer = tf.unstack(tf.strings.split(row, "\\t"), 2)
    return {"inputs": tf.strings.join(["question: ", text]), "targets": answer}


seqio.TaskRegistry.add(
    "questions",
    source=seqio.TextLineDataSource({"train": FILE, "validation": FILE}),
    preprocessors=[
        question,
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos_after_trim,
    ],
    output_features={
        name: seqio.Feature(VOCABULARY, add_eos=True) for name in ("inputs", "targets")
    },
)
seqio.MixtureRegistry.add("all_questions", [("questions", 1.0)])
"""
LENGTHS = {"inputs": 32, "targets": 8}


@pytest.fixture
def project(tmp_path, monkeypatch):
    lines = [f"what is {n} and {n + 1}\t{2 * n + 1}" for n in range(40)]
    (tmp_path / "questions.tsv").write_text("\n".join(lines) + "\n")
    code = PROJECT.replace("FILE", repr(str(tmp_path / "questions.tsv")))
    (tmp_path / "question_project.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    yield "question_project"
    sys.modules.pop("question_project", None)
    seqio.TaskRegistry.remove("questions")
    seqio.MixtureRegistry.remove("all_questions")


def tasks(modules, vocabulary="bytes:0"):
    return RegisteredTasks(
        load("data/seqio_tasks.py"),
        {"modules": modules},
        vocabulary=vocabularies.load(vocabulary),
        objective="text_to_text",
        objective_settings={},
    )


def batches(modules, name, *, vocabulary="bytes:0", **settings):
    return tasks(modules, vocabulary).batches(
        name,
        lengths=LENGTHS,
        converter=converters.build("encoder_decoder"),
        **{"split": "validation", "batch_size": 8, **settings},
    )


@pytest.mark.parametrize("name", ["questions", "all_questions"])
def test_batches_have_the_examples_of_plain_seqio(project, name):
    read = batches(project, name, shuffle=False, repeat=False)
    found = np.concatenate([batch["decoder_target_tokens"] for batch in read])
    plain = seqio.get_mixture_or_task(name).get_dataset(
        LENGTHS, "validation", shuffle=False, num_epochs=1
    )
    expected = [row["targets"].tolist() for row in plain.as_numpy_iterator()]
    assert [row[row > 0].tolist() for row in found] == expected
    assert len(expected) == 40


def config(project, folder, steps):
    made = t5.get_config("small")
    made.workdir = str(folder)
    made.data.module, made.data.task = "data/seqio_tasks.py", "questions"
    made.data.settings = {"modules": project}
    made.data.vocabulary, made.data.lengths = "bytes:0", LENGTHS
    made.data.objective, made.data.objective_settings = "text_to_text", {}
    made.data.batch_size, made.data.pack = 8, False
    made.model.update({"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 16})
    made.model.update({"heads": 2, "d_kv": 8})
    made.train.steps, made.checkpoint.every, made.evaluate.every = steps, 4, 0
    made.train.log_every = 1
    made.optimizer.update({"warmup_steps": 1, "decay_steps": 8})
    return made


def test_a_task_trains_by_its_name_and_resumes(project, tmp_path):
    train.main(parse(config(project, tmp_path / "whole", 8)))
    train.main(parse(config(project, tmp_path / "twice", 4)))
    train.main(parse(config(project, tmp_path / "twice", 8)))
    whole, twice = (
        reporting.read_log(tmp_path / name)["train/loss"] for name in ("whole", "twice")
    )
    assert whole == twice
    assert len(whole) == 8


def test_measures_read_the_texts_that_the_preprocessors_of_a_task_make(project):
    rows = list(tasks([project]).rows("all_questions", split="validation"))
    assert rows[1] == {"inputs": b"question: what is 1 and 2", "targets": b"3"}
    assert len(rows) == 40


def test_another_vocabulary_and_a_module_that_is_not_there_are_refused(project):
    with pytest.raises(ValueError, match=r"vocab_size would be 359, and is 259 there"):
        batches(project, "questions", vocabulary="bytes", split="train")
    with pytest.raises(ValueError, match=r"modules='question_projekt' cannot be imported"):
        tasks("question_projekt")
    with pytest.raises(ValueError, match=r"data.settings.modules is not set"):
        tasks("")


def test_lines_of_text_have_a_digest(project, tmp_path):
    importlib.import_module(project)
    source, file = seqio.TaskRegistry.get("questions").source, tmp_path / "questions.tsv"
    before = offline_cache._digest(source, "train")
    assert before == offline_cache._digest(source, "train")
    file.write_text(file.read_text().replace("what is 3", "what is 4"))
    assert offline_cache._digest(source, "train") != before


@pytest.mark.parametrize(("files", "shards", "noted"), [(3, 2, True), (4, 2, False), (1, 2, False)])
def test_files_that_are_read_more_often_than_others_are_noted(
    files, shards, noted, project, tmp_path
):
    importlib.import_module(project)
    for number in range(files):
        (tmp_path / f"{number}.tsv").write_text("what is 1 and 2\t3\n" * 8)
    task = seqio.TaskRegistry.get("questions")
    seqio.TaskRegistry.add(
        "few_files",
        source=seqio.TextLineDataSource({"train": str(tmp_path / "?.tsv")}),
        preprocessors=task.preprocessors,
        output_features=task.output_features,
    )
    notes = batches(project, "few_files", split="train", batch_size=4, shards=shards).notes()
    seqio.TaskRegistry.remove("few_files")
    assert [f"few_files: {files} files in {shards} shards" in note for note in notes] == (
        [True] if noted else []
    )


@pytest.mark.parametrize("required", [False, True])
def test_only_an_optional_feature_may_be_one_that_nobody_reads(required, project):
    importlib.import_module(project)
    task = seqio.TaskRegistry.get("questions")
    features = dict(task.output_features)
    seqio.TaskRegistry.add(
        "more_features",
        source=task.source,
        preprocessors=[
            task.preprocessors[0],
            seqio.map_over_dataset(lambda row: {**row, "source": row["inputs"]}),
            *task.preprocessors[1:],
        ],
        output_features=features
        | {"source": dataclasses.replace(features["inputs"], required=required)},
    )

    def first(name):
        return next(batches(project, name, shuffle=False))

    try:
        if required:
            with pytest.raises(ValueError, match=r"but the examples have inputs, source, targets"):
                first("more_features")
        else:
            expected, found = first("questions"), first("more_features")
            assert expected.keys() == found.keys()
            for name in expected:
                np.testing.assert_array_equal(found[name], expected[name])
    finally:
        seqio.TaskRegistry.remove("more_features")
