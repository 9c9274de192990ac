"""Measures by name: the defaults of a run, settings of a config, and what each of them needs."""

import json
import re
import typing

import pytest

from t5x_like import config, systems
from t5x_like.config import parse
from t5x_like.config.run_settings import EvaluateSettings
from t5x_like.evaluation import measures
from t5x_like.evaluation.documents import Documents
from t5x_like.evaluation.in_context import InContext
from t5x_like.evaluation.resources import MeasureResources
from t5x_like.experiment import command_line
from t5x_like.experiment.run import of_config
from t5x_like.hf.architectures import Labels
from t5x_like.pretrained import from_pretrained
from tests.programs import dialog_models, in_process, tiny_encoder


@pytest.mark.parametrize(
    ("system", "head", "objective", "names"),
    [
        ("t5", "", "span_corruption", ["loss"]),
        ("gpt2", "", "language_modeling", ["loss", "documents"]),
        ("transformer", "", "translation", ["loss", "translation"]),
        ("bert", "question_answering", "question_answering", ["loss", "squad"]),
        ("bert", "classification", "classification", ["loss", "predictions"]),
        ("t5", "", "text_to_text", ["loss", "generation"]),
    ],
)
def test_the_defaults_come_from_the_task_and_the_objective(system, head, objective, names):
    task = systems.find(system).task({"head": head})
    assert list(measures.default_settings(task, objective=objective)) == names


def test_documents_of_a_run_are_cleaned_as_in_training():
    task = systems.find("gpt2").task({})
    settings = measures.default_settings(task, objective="language_modeling")
    assert measures.make("documents", settings["documents"], task=task) == Documents(cleaned=True)


def test_a_measure_has_the_kind_of_its_name_or_another():
    task = systems.find("gpt2").task({})
    assert measures.make("documents", {"stride": 3}, task=task) == Documents(stride=3)
    made = measures.make("few", {"kind": "in_context", "shots": 2}, task=task)
    assert made == InContext(shots=2)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("document", {}, "evaluate.measures.document.kind='document' does not exist. Did you mean"),
        (
            "x",
            {"kind": "los"},
            "evaluate.measures.x.kind='los' does not exist. Did you mean 'loss'",
        ),
        ("loss", {"stride": 1}, "evaluate.measures.loss.stride does not exist"),
        ("documents", {"strid": 1}, "strid does not exist. Did you mean 'stride'"),
    ],
)
def test_an_error_names_the_nearest_that_there_is(name, settings, message):
    with pytest.raises(ValueError, match=message.replace("'", ".")):
        measures.make(name, settings, task=systems.find("gpt2").task({}))


def test_help_names_every_measure():
    hints = typing.get_type_hints(EvaluateSettings, include_extras=True)
    described = re.findall(r"\w+", hints["measures"].__metadata__[0])
    assert set(described) >= {*measures.MEASURES, measures.BENCHMARK}


def test_every_measure_needs_what_resources_have():
    for kind in measures.MEASURES.values():
        assert all(callable(getattr(MeasureResources, need)) for need in kind.needs)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ({}, {}),
        ({"kind": "last_word", "cleaned": True, "predictions": "a.jsonl"}, {"cleaned": True}),
    ],
)
def test_a_config_of_an_older_run_still_loads(score, expected, tmp_path):
    stored = config.to_dict(parse(config.defaults()))
    del stored["evaluate"]["measures"], stored["evaluate"]["predictions"]
    (tmp_path / "config.json").write_text(json.dumps(stored | {"score": score}))
    loaded = config.load(tmp_path / "config.json")
    of_config(loaded)
    if score:
        expected = {"last_word": {"kind": "last_word", **expected}}
    assert loaded.evaluate.measures.to_dict() == expected
    assert loaded.evaluate.predictions == score.get("predictions", "")


def test_a_setting_with_another_name_now_is_an_error_that_names_it():
    old = config.defaults()
    old.score = {"kind": "last_word"}
    with pytest.raises(ValueError, match=r"the setting 'score' is now evaluate\.measures"):
        of_config(old)


def test_measures_are_set_from_the_command_line():
    made = config.defaults()
    command_line.set_value(made, "evaluate.measures.documents.stride", "64")
    assert made.evaluate.measures.to_dict() == {"documents": {"stride": 64}}
    with pytest.raises(ValueError, match=r"the setting 'score' is now evaluate\.measures"):
        command_line.set_value(made, "score.kind", "last_word")


# What `dry_run` reads before training, and what only the measure reads.
@pytest.mark.parametrize(("bad", "trains"), [(0, False), (12, True)])
def test_a_row_that_a_measure_cannot_read_ends_a_run_with_one_line(tmp_path, bad, trains):
    lines = ["two words"] * 16
    lines[bad] = "one"
    (tmp_path / "held_out.txt").write_text("\n".join(lines) + "\n")
    settings = {
        "train.steps": 2,
        "evaluate.every": 2,
        "evaluate.measures": {"last_word": {"every": 2}},
        "data.settings.validation_files": str(tmp_path / "held_out.txt"),
    }
    flags = [f"--config.{name}={value}" for name, value in settings.items()]
    done = in_process.run(
        "t5x_like.train", f"--config=tests/programs/tiny_t5.py:{tmp_path}", *flags
    )
    assert done.status == 2
    assert done.err.splitlines()[-1] == (
        "error: evaluate.measures.last_word: a text needs two words, to predict the last one: 'one'"
    )
    assert (tmp_path / "run").exists() == trains


def test_every_measure_of_texts_reads_rows_without_parameters(tmp_path):
    tiny_encoder.write(tmp_path / "bert", "bert", words=["w1", "w2"])
    classifier = from_pretrained(tmp_path / "bert", head="classification", labels=2)
    classifier.labels = {"": Labels(("clean", "toxic"))}
    classifier.save_pretrained(tmp_path / "classifier")
    settings = {"toxicity": {"classifier": str(tmp_path / "classifier"), "samples": 2}}
    labels = ("sensible", "specific", "interesting", "unsafe", "claims")
    row = {label: ["w1"] for label in labels}
    row |= {"context": ["w1"], "supported": ["w2"], "sources": ["w3"], "text": "w1 w2"}
    row |= {"inputs": "w1 XXXXX", "targets": "w2", "choices": ["w2", "w3"]}
    model = dialog_models.make().generating(batch_size=4, do_sample=True).dry()
    model.pretrained.params = None
    resources = {"text_model": model, "rows": [row] * 3, "examples": [row] * 3}
    for name, kind in measures.MEASURES.items():
        if "text_model" in kind.needs:
            task = systems.find("lamda").task({})
            measure = measures.make(name, settings.get(name, {}), task=task)
            numbers, _ = measure.measure(*(resources[need] for need in kind.needs))
            assert numbers
