"""The best checkpoint of a run, early stopping, measures while training, and killed runs."""

import json
import math

import numpy as np
import pytest

from configs import t5
from t5x_like import checkpoints, evaluate, train
from t5x_like.checkpoints import BestCheckpoint, CheckpointError
from t5x_like.config import parse
from t5x_like.evaluation.training_evaluation import EvaluationPlan, Evaluator
from t5x_like.experiment import reporting
from t5x_like.experiment.run import of_config
from tests.programs import command_flags, tiny_t5

pytestmark = pytest.mark.usefixtures("one_device")

LOSS = "text_files/cross_entropy"
VALUES = {1: 5.0, 2: 3.0, 3: 4.0, 4: 4.5, 5: 1.0, 6: 2.0}


class Killed(BaseException):
    """Ends a run at once, as no `except Exception` notices."""


def settings(folder, **changes):
    made = tiny_t5.get_config(str(folder))
    made.train.steps = 6
    made.checkpoint.every = made.evaluate.every = 1
    made.checkpoint.keep = 1
    made.checkpoint.best = LOSS
    made.update_from_flattened_dict({key.replace("__", "."): v for key, v in changes.items()})
    return made


@pytest.fixture
def values(monkeypatch):
    """Replaces what evaluations of a run find; `killed_at` ends it before the value of a step."""

    def give(values=VALUES, *, killed_at=None):
        seen = []

        def found(self, state):
            step = int(state.step)
            if step == killed_at:
                raise Killed
            seen.append(step)
            return {LOSS: values[step], "text_files/loss": values[step]}

        monkeypatch.setattr(Evaluator, "__call__", found)
        return seen

    return give


def stored(folder):
    return json.loads((folder / "run" / "checkpoints" / "best.json").read_text())


@pytest.mark.slow
def test_the_best_is_kept_beside_the_newest_and_patience_ends_the_run(tmp_path, values, capsys):
    values()
    train.main(parse(settings(tmp_path, train__patience=2)))
    folder = tmp_path / "run" / "checkpoints"
    assert checkpoints.checkpoint_steps(folder) == [2, 4]
    assert stored(tmp_path)["step"] == 2
    said = capsys.readouterr().out
    assert f"stopped early: no better {LOSS} since step 2\n" in said
    assert f"best checkpoint: {LOSS} 3.0000 at step 2" in said
    for path in (folder / "best", tmp_path / "run" / "best"):
        assert checkpoints.restore_params(path)[1] == 2

    seen = values()  # the same command again has nothing to do
    train.main(parse(settings(tmp_path, train__patience=2)))
    assert seen == []
    assert checkpoints.checkpoint_steps(folder) == [2, 4]

    train.main(parse(settings(tmp_path, train__patience=3)))  # and with more patience goes on
    assert seen == [5, 6]
    assert checkpoints.checkpoint_steps(folder) == [5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [3, 6])
def test_a_run_killed_before_an_evaluation_evaluates_first(killed_at, tmp_path, values):
    values(killed_at=killed_at)
    with pytest.raises(Killed):
        train.main(parse(settings(tmp_path)))
    assert str(killed_at) not in stored(tmp_path)["values"]
    seen = values()
    train.main(parse(settings(tmp_path)))
    assert seen == list(range(killed_at, 7))
    assert stored(tmp_path) == {
        "number": LOSS,
        "step": 5,
        "values": {str(step): value for step, value in VALUES.items()},
    }
    assert checkpoints.checkpoint_steps(tmp_path / "run" / "checkpoints") == [5, 6]


@pytest.mark.slow
def test_a_run_killed_in_its_last_evaluation_gets_it_without_a_best_checkpoint(tmp_path, values):
    values(killed_at=6)
    with pytest.raises(Killed):
        train.main(parse(settings(tmp_path, checkpoint__best="")))
    for expected in ([6], []):  # and then the run is finished
        seen = values()
        train.main(parse(settings(tmp_path, checkpoint__best="")))
        assert seen == expected


def questions(folder, **changes):
    rows = [{"inputs": f"say {n % 7}", "targets": [str(n % 7), "x"]} for n in range(24)]
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = settings(folder, checkpoint__best="mean/average", **changes)
    made.data.module, made.data.task = "data/prompted_files.py", "prompted_files"
    made.data.settings = {"train": str(path), "validation": str(path)}
    made.data.objective = "text_to_text"
    made.train.steps = 4
    made.checkpoint.every = made.evaluate.every = 2
    made.evaluate.measures = {
        "loss": {},
        "generation": {"metrics": ("f1", "rouge_1"), "every": 2},
        "slow": {"kind": "generation"},
    }
    made.evaluate.averages = {
        "mean": {"a": ("prompted_files/generation/f1", "prompted_files/generation/rouge_1")}
    }
    return made


def test_measures_run_on_their_schedule_with_the_newest_parameters(tmp_path, monkeypatch):
    made = questions(tmp_path)
    train.main(parse(made))
    log = reporting.read_log(tmp_path / "run")
    assert sorted(log["prompted_files/generation/f1"]) == [2, 4]
    assert sorted(log["prompted_files/cross_entropy"]) == [2, 4]
    assert not any("slow" in name for name in log)
    pairs = {2: 0.0, 4: 0.0}
    for step in pairs:
        own = [log[f"prompted_files/generation/{name}"][step] for name in ("f1", "rouge_1")]
        pairs[step] = np.mean(own)
    assert log["mean/average"] == pytest.approx(pairs)
    command_flags.give(monkeypatch, checkpoint="best")
    evaluate.main(parse(made))
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    step = stored(tmp_path)["step"]
    assert found["step"] == step
    for name in ("cross_entropy", "generation/f1", "generation/rouge_1"):
        expected = log[f"prompted_files/{name}"][step]
        assert found["tasks"]["prompted_files"][name] == pytest.approx(expected, abs=1e-5)
    assert found["tasks"]["mean"]["average"] == pytest.approx(log["mean/average"][step], abs=1e-5)
    low, high = found["intervals"]["mean"]["average"]
    assert low <= found["tasks"]["mean"]["average"] <= high


def test_t5_is_fine_tuned_with_the_best_checkpoint_on_validation_data(tmp_path):
    made = t5.get_config("fine_tuning")
    made.system, made.model = "t5", {}
    best = EvaluationPlan(of_config(made)).best(tmp_path)
    assert best.number == "text_files/generation/f1"
    for step, value in {5_000: 0.5, 10_000: 0.6, 15_000: 0.4}.items():
        assert EvaluationPlan(of_config(made)).has(best.number, step=step)
        best.add(step, value)
    assert best.step == 10_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint__best": "text_files/los"}, "Did you mean 'text_files/loss'"),
        ({"checkpoint__best": "text_files/exact"}, "'text_files/exact' does not exist"),
        ({"checkpoint__best": "loss"}, "checkpoint.best='loss' is not a number of this evaluation"),
        ({"checkpoint__best": "", "train__patience": 2}, "train.patience=2 must be 0 or more, and"),
        ({"train__patience": -1}, "train.patience=-1 must be 0 or more"),
        ({"checkpoint__every": 2}, "measured every 1 steps, which must be a multiple of"),
        ({"evaluate__every": 0}, "measured every 0 steps, which must be a multiple of"),
        (
            {"evaluate__measures": {"generation": {"every": 3}}, "evaluate__every": 2},
            "evaluate.measures.generation.every=3 must be a multiple of evaluate.every=2",
        ),
        (
            {"evaluate__averages": {"a": {"b": "text_files/f1"}}},
            "evaluate.averages.a.b='text_files/f1' is not a number of this evaluation",
        ),
        (
            {"checkpoint__best": "", "evaluate__averages": {"a": {"b": "text_files/f1"}}},
            "evaluate.averages.a.b='text_files/f1' is not a number of this evaluation",
        ),
        (
            {"checkpoint__best": "", "evaluate__averages": {"a": {"b": "text_files/x/accuracy"}}},
            "evaluate.averages.a.b='text_files/x/accuracy' does not exist",
        ),
    ],
)
def test_a_mistake_is_one_line_before_training(changes, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        train.main(parse(settings(tmp_path, **changes)))
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert message in said
    assert checkpoints.checkpoint_steps(tmp_path / "run" / "checkpoints") == []


def test_a_run_without_a_best_checkpoint_has_none(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="did not choose a best checkpoint"):
        checkpoints.read_metadata(tmp_path / "best")


@pytest.mark.parametrize(
    ("smaller", "values", "step"),
    [
        (True, {1: 3.0, 2: 1.0, 3: 1.0, 4: math.nan}, 2),
        (False, {1: 3.0, 2: 3.0, 3: 1.0}, 1),
        (False, {1: math.nan, 2: -math.inf}, 2),
        (True, {1: math.nan}, None),
    ],
)
def test_which_step_is_best(smaller, values, step, tmp_path):
    best = BestCheckpoint(tmp_path, number="x", smaller_is_better=smaller)
    for own, value in values.items():
        best.add(own, value)
    assert best.step == step
    again = BestCheckpoint(tmp_path, number="x", smaller_is_better=smaller)
    assert list(again.values) == list(values)
    assert again.step == step or not np.isfinite(list(values.values())).all()
    again.resume_at(1)
    assert list(again.values) == [1]
    with pytest.raises(CheckpointError, match=r"best.json has values of 'x'; keep that number, or"):
        BestCheckpoint(tmp_path, number="y", smaller_is_better=True)


def test_patience_counts_evaluations_since_the_best(tmp_path):
    best = BestCheckpoint(tmp_path, number="x", smaller_is_better=True, patience=2)
    ends = []
    for step, value in enumerate([3.0, 2.0, 2.5, 1.0, 1.0, 1.5], start=1):
        best.add(step, value)
        ends.append(best.exhausted)
    assert ends == [False, False, False, False, False, True]
