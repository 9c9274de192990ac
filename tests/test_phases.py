"""Phases: the shapes change where they should, and a run that dies in one ends as if it had not."""

import shutil

import jax
import numpy as np
import pytest

from t5x_like import checkpoints, config, evaluate, train
from t5x_like.config import parse
from t5x_like.experiment import command_line, model_side, reporting
from t5x_like.experiment.run import of_config
from tests.programs import command_flags, tiny_t5

pytestmark = pytest.mark.usefixtures("one_device")

PHASES = {
    "short": {"steps": 3},
    "long": {"steps": 3, "lengths": {"inputs": 48}, "batch_size": 16},
}


class Killed(BaseException):
    """Ends a run at once, as no `except Exception` notices."""


def settings(folder, *, workdir="run"):
    """Three steps of 8 rows of 32 tokens, then three of 16 rows of 48."""
    tiny = tiny_t5.get_config(str(folder))
    tiny.workdir = f"{folder}/{workdir}"
    tiny.phases = PHASES
    tiny.train.phases = ("short", "long")
    tiny.train.steps = 6
    tiny.evaluate.batches = 1
    return tiny


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The folder of a run through both phases, and the shapes of its batches."""
    folder, shapes = tmp_path_factory.mktemp("straight"), []
    put = model_side.TaskProgram.put

    def recording(self, batch):
        shapes.append(batch["encoder_input_tokens"].shape)
        return put(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_side.TaskProgram, "put", recording)
        train.main(parse(settings(folder)))
    return folder / "run", shapes


def test_each_phase_has_its_shapes_and_is_evaluated_on_them(straight):
    _, shapes = straight
    short, long = (8, 32), (16, 48)
    assert shapes == [short] * 4 + [long] * 4  # three to train on and one to evaluate, each


def test_rates_follow_the_phase(straight):
    log = reporting.read_log(straight[0])
    tokens, examples = (log[f"train/{name}_per_second"] for name in ("tokens", "examples"))
    rates = log["train/steps_per_second"]
    for step, rows, inputs in ((2, 8, 32), (3, 8, 32), (5, 16, 48), (6, 16, 48)):
        np.testing.assert_allclose(examples[step] / rates[step], rows)
        np.testing.assert_allclose(tokens[step] / examples[step], inputs + 16)  # and targets


def test_a_run_goes_on_exactly_from_within_a_phase(straight, tmp_path):
    shutil.copytree(straight[0], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "6")
    assert checkpoints.checkpoint_steps(tmp_path / "run" / "checkpoints")[-1] == 4
    train.main(parse(settings(tmp_path)))
    parameters = [checkpoints.restore_params(path)[0] for path in (straight[0], tmp_path / "run")]
    jax.tree.map(np.testing.assert_array_equal, *parameters)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed_at", "newest"), [pytest.param(4, 3, id="boundary"), pytest.param(5, 4, id="within")]
)
def test_a_run_that_dies_goes_on_exactly(straight, tmp_path, monkeypatch, killed_at, newest):
    show = reporting.ProgressLine.__call__

    def die(self, step, values):
        show(self, step, values)
        if step == killed_at:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(reporting.ProgressLine, "__call__", die)
        with pytest.raises(Killed):
            train.main(parse(settings(tmp_path)))
    assert checkpoints.checkpoint_steps(tmp_path / "run" / "checkpoints")[-1] == newest
    train.main(parse(settings(tmp_path)))
    parameters = [checkpoints.restore_params(path)[0] for path in (straight[0], tmp_path / "run")]
    jax.tree.map(np.testing.assert_array_equal, *parameters)


def test_a_position_of_another_phase_is_refused(straight, tmp_path, capsys):
    other = settings(straight[0].parent)
    other.phases.short.steps, other.phases.long.steps, other.train.steps = 7, 1, 8
    with pytest.raises(SystemExit):
        train.main(parse(other))
    assert "saved with phase='long' and cannot be restored with phase='short'" in (
        capsys.readouterr().err
    )


def test_a_checkpoint_is_evaluated_on_the_data_of_its_phase(straight, monkeypatch):
    measured = []

    def record(self, params, batches):
        measured.extend(batch["encoder_input_tokens"].shape for batch in batches)
        return {}

    monkeypatch.setattr(model_side.TaskProgram, "measure", record)
    for step in (3, 4):
        path = straight[0] / "checkpoints" / str(step)
        command_flags.give(monkeypatch, checkpoint=path, output=straight[0] / "evaluation.json")
        evaluate.main(parse(settings(straight[0].parent)))
    assert measured == [(8, 32), (16, 48)]


def test_phases_come_in_the_order_that_is_set(tmp_path):
    first, second = of_config(settings(tmp_path)).phases
    assert [(p.name, p.first, p.last) for p in (first, second)] == [("short", 0, 3), ("long", 3, 6)]
    assert first.data.seed != second.data.seed
    # What a phase does not name stays as it is.
    assert second.data.lengths == {"inputs": 48, "targets": 16}
    assert first.data.batch_size == 8
    assert [of_config(settings(tmp_path)).phase_at(s).name for s in (1, 3, 4, 9)] == [
        *("short", "short", "long", "long")
    ]


def test_a_run_without_phases_is_one(tmp_path):
    tiny = tiny_t5.get_config(str(tmp_path))
    [phase] = of_config(tiny).phases
    assert (phase.name, phase.first, phase.last, phase.reading) == ("", 0, 4, "")
    assert phase.data == parse(tiny).data


def test_the_phases_of_a_run_survive_its_config_file(tmp_path):
    written = settings(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(written.to_json_best_effort())
    names = [phase.name for phase in of_config(config.load(path)).phases]
    assert names == ["short", "long"]


def test_flags_change_single_settings_of_a_phase(tmp_path):
    made = settings(tmp_path)
    for key, value in (("long.steps", "10"), ("long.lengths.inputs", "64")):
        command_line.set_value(made, f"phases.{key}", value)
    command_line.set_value(made, "train.steps", "13")
    short, long = of_config(made).phases
    assert (short.last, long.last) == (3, 13)
    assert long.data.lengths["inputs"] == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.steps": 7}, r"train.steps=7 must be the sum .*: 3 \(short\) \+ 3 \(long\) = 6"),
        ({"train.phases": ("short",)}, r"\('short',\) must have each name in phases .*long, short"),
        ({"train.phases": ("short", "long", "long")}, "must have each name in phases once"),
        ({"phases.long.steps": 0}, "phases.long.steps=0 must be 1 or more"),
        ({"phases.long.batch_size": 0}, "phases.long: data.batch_size=0 must be 1 or more"),
        ({"phases.long.batch_size": 9, "train.microbatches": 2}, "phases.long: .*=2 does not div"),
    ],
)
def test_phases_that_do_not_fit_are_named(changes, message, tmp_path):
    wrong = settings(tmp_path)
    wrong.update_from_flattened_dict(changes)
    with pytest.raises(ValueError, match=message):
        of_config(wrong)


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ({"batchsize": 4}, r"phases.long='batchsize'.*Did you mean 'batch_size'\?"),
        ({"vocabulary": "bytes"}, "phases.long='vocabulary' does not exist"),
        ({"batch_size": "many"}, "phases.long: .*batch_size"),
    ],
)
def test_settings_that_no_phase_has_are_named(phase, message, tmp_path):
    wrong = settings(tmp_path)
    wrong.phases = {"short": {"steps": 3}, "long": {"steps": 3} | phase}
    with pytest.raises(ValueError, match=message):
        of_config(wrong)
