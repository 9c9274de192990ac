"""T5 and BERT fine-tuned on benchmarks by the commands, and evaluated with the tasks' metrics."""

import importlib.util
import json
import pathlib

import pytest

from t5x_like import evaluate, train
from t5x_like.config import parse
from t5x_like.evaluation import measures
from t5x_like.experiment.run import of_config
from tests.programs import benchmark_rows, command_flags, tiny_encoder, tiny_t5

ROOT = pathlib.Path(__file__).parents[1]


def config_file(name):
    spec = importlib.util.spec_from_file_location(f"config_{name}", ROOT / "configs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config


def t5_on_glue(folder):
    """The config of T5 on the mixture of GLUE, for a tiny T5 that is not pretrained."""
    made = config_file("t5")("glue")
    tiny = tiny_t5.get_config(str(folder))
    made.system, made.model, made.optimizer = tiny.system, tiny.model, tiny.optimizer
    made.workdir = tiny.workdir
    made.data.update(tiny.data.copy_and_resolve_references())
    made.data.module, made.data.task = "data/glue.py", "glue"
    made.data.settings = {"folder": str(folder / "glue")}
    made.data.objective, made.data.pack = "text_to_text", True
    made.data.lengths, made.data.shards = {"inputs": 128, "targets": 32}, 1
    made.train.steps, made.train.log_every = 4, 2
    made.evaluate.every = made.checkpoint.every = made.evaluate.measures.benchmark.every = 2
    made.decode.max_new_tokens = 4
    return made


def bert_on_sst2(folder):
    words = {word for n in range(100) for word in benchmark_rows.sst2(n)["sentence"].split()}
    bert = tiny_encoder.write(folder / "bert", "bert", words=sorted(words))
    made = config_file("fine_tuning")("classification")
    made.initialize, made.workdir = str(bert), str(folder / "run")
    made.data.module, made.data.task = "data/glue.py", "glue_sst2"
    made.data.settings = {"folder": str(folder / "glue")}
    made.data.lengths.inputs = 16
    made.data.batch_size = 8
    made.train.steps, made.evaluate.every = 60, 0
    made.optimizer.learning_rate = 1e-3
    return made


def run(config, monkeypatch):
    """Train and evaluate; the numbers of each task."""
    train.main(parse(config))
    command_flags.give(monkeypatch)
    evaluate.main(parse(config_file("run")(config.workdir)))
    return json.loads((pathlib.Path(config.workdir) / "evaluation.json").read_text())["tasks"]


@pytest.mark.slow
def test_t5_trains_on_the_mixture_and_keeps_the_best_average(tmp_path, monkeypatch):
    benchmark_rows.write(tmp_path / "glue", benchmark_rows.GLUE)
    found = run(t5_on_glue(tmp_path), monkeypatch)
    assert set(found) == {"glue"} | {
        f"glue_{task}"
        for task in (
            "cola",
            "sst2",
            "mrpc",
            "qqp",
            "stsb",
            "mnli",
            "mnli_mismatched",
            "qnli",
            "rte",
        )
    }
    assert "benchmark/matthews" in found["glue_cola"]
    assert {"benchmark/pearson", "benchmark/spearman"} <= set(found["glue_stsb"])
    assert {"benchmark/f1_binary", "benchmark/accuracy"} <= set(found["glue_qqp"])
    best = json.loads((tmp_path / "run" / "checkpoints" / "best.json").read_text())
    assert "glue/average" in json.dumps(best)


@pytest.mark.slow
def test_bert_learns_a_task_from_its_file(tmp_path, monkeypatch):
    benchmark_rows.write(tmp_path / "glue", {"sst2": benchmark_rows.sst2})
    found = run(bert_on_sst2(tmp_path), monkeypatch)["glue_sst2"]
    assert found["benchmark/accuracy"] > 0.9


def test_each_task_of_a_run_has_its_own_measure(tmp_path):
    made = t5_on_glue(tmp_path)
    metrics = {
        task: measures.of_part(of_config(made).parts[0], data_task=task)["benchmark"].metrics
        for task in ("glue_cola", "glue_stsb")
    }
    assert metrics == {"glue_cola": ("matthews",), "glue_stsb": ("pearson", "spearman")}
    made.evaluate.measures = {}
    assert [*measures.of_part(of_config(made).parts[0], data_task="glue_cola")] == [
        "loss",
        "benchmark",
    ]
    made.data.module = "data/text_files.py"
    assert "benchmark" not in measures.of_part(of_config(made).parts[0], data_task="text_files")
    made.evaluate.measures = {"mine": {"kind": "benchmark"}}
    with pytest.raises(
        ValueError, match=r"evaluate\.measures\.mine: .*has no measure for its tasks"
    ):
        measures.of_part(of_config(made).parts[0], data_task="text_files")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": 2}, "validation.jsonl:4: label=2 is not a label: 0 to 1 are negative, positive"),
        ({"sentence": 3}, "validation.jsonl:4: sentence=3 must be a string"),
    ],
)
def test_a_bad_row_is_one_line_before_training(changes, message, tmp_path, monkeypatch, capsys):
    folder = benchmark_rows.write(tmp_path / "glue", {"sst2": benchmark_rows.sst2})
    path = folder / "sst2" / "validation.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[3] |= changes
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = bert_on_sst2(tmp_path)
    monkeypatch.setattr("t5x_like.experiment.model_side.TaskProgram.initial_state", None)
    with pytest.raises(SystemExit):
        train.main(parse(made))
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error
