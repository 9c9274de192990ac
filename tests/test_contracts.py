"""The contracts of a system: toy systems in a user's file, trained, killed, resumed, evaluated.

Nothing in the package knows them: the setting `system` is the path of tests/toy_systems.py and the
name of a value in it.
"""

import json
import pathlib
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from t5x_like import checkpoints, config, evaluate, partitioning, systems, train
from t5x_like.checkpoints import reading
from t5x_like.config import parse
from t5x_like.experiment import data_side, model_side, recurrent_state, reporting
from t5x_like.experiment.run import of_config
from tests.programs import command_flags

ROOT = pathlib.Path(__file__).parents[1]
FILE = ROOT / "tests" / "toy_systems.py"
STEPS = 6


TASKS = {
    "words": {
        "model": {"head": "next", "labels": 384},
        "data": {"lengths": {"targets": 24}},
        "share": 2,
    },
    "letters": {
        "model": {"head": "vowels", "labels": 2},
        "loss": {"scale": 0.5},
        "data": {"batch_size": 16},
    },
}


def settings(folder, name, *, initialize=""):
    """A run of six steps in `folder` on lines of digits and words."""
    text = folder / "text.txt"
    if not text.exists():
        words = ("one", "two", "three", "four", "five", "six", "seven")
        lines = (f"{n} {' '.join(words[(n + i) % 7] for i in range(6))}" for n in range(300))
        text.write_text("\n".join(lines) + "\n")
    made = config.defaults()
    made.system = f"{FILE}:{name}"
    made.workdir = str(folder / "run")
    made.initialize = str(initialize)
    made.model = systems.find(made.system).sizes["toy"]
    made.data.module = str(ROOT / "data" / "text_files.py")
    made.data.settings = {"files": str(text), "held_out": 0.2}
    made.data.task = "text_files"
    made.data.vocabulary = "bytes"
    made.data.objective = "language_modeling"
    made.data.converter = "decoder"
    made.data.lengths = {"targets": 16}
    made.data.batch_size = 8
    made.data.shards = 2
    made.data.shuffle_buffer = 50
    made.train.steps = STEPS
    made.train.log_every = 1
    made.optimizer = {
        "name": "adamw",
        "schedule": "constant",
        "learning_rate": 0.01,
        "weight_decay": 0.1,
    }
    made.mesh = {"data": 2, "fsdp": 2, "expert": 1, "model": 2}
    made.checkpoint.every = 2
    made.checkpoint.keep = 10
    made.evaluate.every = 0
    made.evaluate.batches = 2
    adapt(made, name)
    return made


def adapt(made, name):
    """Set what one system needs that the others do not."""
    if name == "TWO_HEADS":
        made.tasks = TASKS
        made.checkpoint.every = 1
    if name == "MEMORY":
        made.data.continue_rows = True
        made.data.shards = made.data.batch_size  # each row reads documents of its own
    if name == "STUDENT":
        made.optimizer.frozen = ("teacher",)


def finished(folder, name):
    """The workdir of a whole run, of a student after its teacher's."""
    initialize = ""
    if name == "STUDENT":
        (folder / "teacher").mkdir()
        train.main(parse(settings(folder / "teacher", "TEACHER")))
        initialize = folder / "teacher" / "run"
    train.main(parse(made := settings(folder, name, initialize=initialize)))
    return made


NAMES = ("MEMORY", "TWO_HEADS", "STUDENT", "SAMPLER", "WATCHER", "KEYED", "TWO_STREAMS")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The settings of a finished run, by the name of its system; each is made once."""
    made = {}

    def run(name):
        if name not in made:
            made[name] = finished(tmp_path_factory.mktemp(name), name)
        return made[name]

    return run


def stored(workdir, step):
    """All arrays of a checkpoint."""
    folder = reading.newest_intact(pathlib.Path(workdir) / "checkpoints" / str(step))
    return {
        item: reading._restore_arrays(folder / item, None, cast=False)
        for item in (reading.PARAMS, reading.TRAINING)
    }


def assert_same(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), found, expected)


def log_of(made):
    return reporting.read_log(pathlib.Path(made.workdir))


def resumed(made, folder, *, step):
    """The settings of a run in another folder that goes on from a step of a finished one."""
    shutil.copytree(made.workdir, folder / "run")
    for later in checkpoints.checkpoint_steps(folder / "run" / "checkpoints"):
        if later > step:
            shutil.rmtree(folder / "run" / "checkpoints" / str(later))
    again = made.copy_and_resolve_references()
    again.workdir = str(folder / "run")
    return again


# A network without a state of its own resumes as any other.
@pytest.mark.parametrize(
    "name", [*NAMES[:4], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[4:])]
)
def test_a_run_stops_and_resumes_bit_for_bit(runs, name, tmp_path):
    made = runs(name)
    again = resumed(made, tmp_path, step=4)
    train.main(parse(again))
    assert_same(stored(again.workdir, STEPS), stored(made.workdir, STEPS))
    logs = log_of(made), log_of(again)
    held_out = [key for key in logs[0] if key.endswith("text_files/loss")]
    assert held_out
    assert {key: logs[0][key] for key in held_out} == {key: logs[1][key] for key in held_out}


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("MEMORY", "WATCHER") else pytest.param(name, marks=pytest.mark.slow)
        for name in NAMES
    ],
)
def test_the_command_evaluate_measures_the_held_out_loss_of_training(runs, name, monkeypatch):
    made, log = runs(name), log_of(runs(name))
    command_flags.give(monkeypatch)
    evaluate.main(parse(made))
    measured = json.loads((pathlib.Path(made.workdir) / "evaluation.json").read_text())
    assert measured["step"] == STEPS
    tasks = [f"{task}/text_files" for task in made.tasks] or ["text_files"]
    assert list(measured["tasks"]) == tasks
    for task in tasks:
        assert measured["tasks"][task]["loss"] == log[f"{task}/loss"][STEPS]


def on_one_device(made, *, steps):
    """The losses of a run's first steps on one device."""
    alone = made.copy_and_resolve_references()
    alone.mesh = {"data": 1, "fsdp": 1, "expert": 1, "model": 1}
    run = of_config(alone)
    models = model_side.build_tasks(run, devices=jax.devices()[:1])
    first = next(iter(models.values()))
    data = {
        part.name: data_side.build(part, first.mesh, shards=alone.data.shards) for part in run.parts
    }
    state, found = first.initial_state(), {}
    batches = train._batches(run.parts, data, step=0, seed=alone.train.seed)
    with partitioning.layout(first.mesh):
        state = state.replace(carry=recurrent_state.initial(models, data))
        for step in range(1, steps + 1):
            task, batch = next(batches)
            state, metrics = models[task].train_step(state, first.put(batch))
            name = f"train/{task}/loss" if task else "train/loss"
            found.setdefault(name, {})[step] = float(metrics["loss"].compute())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_eight_devices_compute_what_one_does(runs, name):
    made = runs(name)
    log, alone = log_of(made), on_one_device(made, steps=STEPS)
    for metric, series in alone.items():
        # Float32 sums in another order, through as many updates; a student's divergence is a small
        # difference of numbers around 6.
        expected = list(log[metric].values())
        np.testing.assert_allclose(list(series.values()), expected, rtol=2e-5, atol=1e-6)
    sharded = jax.tree.leaves(
        model_side.build_tasks(of_config(made))[next(iter(made.tasks), "")].shardings
    )
    assert any(not one.is_fully_replicated for one in sharded)


def test_a_step_of_a_task_changes_no_other_head_and_none_of_its_moments(runs):
    made = runs("TWO_HEADS")
    log = log_of(made)
    tasks = {step: task for task in TASKS for step in log[f"train/{task}/loss"]}
    assert sorted(tasks) == list(range(1, STEPS + 1))
    assert set(tasks.values()) == set(TASKS)
    states = {step: stored(made.workdir, step) for step in range(1, STEPS + 1)}
    heads = {step: state["params"]["head"] for step, state in states.items()}
    compared = set()
    for step in range(2, STEPS + 1):
        for task in TASKS:
            before, after = heads[step - 1][task]["kernel"], heads[step][task]["kernel"]
            still = task != tasks[step]
            assert np.array_equal(before, after) == still
            compared.add(still)
            moments = [
                moments_of(states[s]["training"]["opt_state"], task) for s in (step - 1, step)
            ]
            assert len(moments[0]) == 3  # Adam's two, and how many steps they are the mean of
            same = [np.array_equal(a, b) for a, b in zip(*moments, strict=True)]
            assert same == [still] * 3
    assert compared == {True, False}


def moments_of(opt_state, task):
    """The optimizer's arrays for the head of a task."""
    states = [node for node in jax.tree.leaves(opt_state, is_leaf=_has_heads) if _has_heads(node)]
    [state] = states
    return jax.tree.leaves(state["heads"][task])


def _has_heads(node):
    return isinstance(node, dict) and "heads" in node


def test_metrics_of_tasks_have_their_names_and_their_own_data(runs):
    log = log_of(runs("TWO_HEADS"))
    for task in TASKS:
        assert list(log[f"{task}/text_files/loss"]) == [STEPS]
    # Tokens of a step: 8 rows of 24, or 16 of 16.
    rates = log["train/tokens_per_second"]
    for step, rate in rates.items():
        tokens = rate / log["train/steps_per_second"][step]
        rows, length = (8, 24) if step in log["train/words/loss"] else (16, 16)
        np.testing.assert_allclose(tokens, rows * length)


def test_a_student_starts_from_its_teacher_and_leaves_it_as_it_is(runs):
    made = runs("STUDENT")
    teacher = checkpoints.restore_params(made.initialize)[0]
    assert_same(stored(made.workdir, STEPS)["params"]["teacher"], teacher)
    assert set(log_of(made)["train/loss"]) == set(range(1, STEPS + 1))


def test_samples_come_from_the_newest_parameters_and_differ_from_step_to_step(runs):
    log = log_of(runs("SAMPLER"))
    assert log["train/seen_step"] == {step: step - 1 for step in range(1, STEPS + 1)}
    np.testing.assert_allclose(
        list(log["train/seen_norm"].values()), list(log["train/param_norm"].values()), rtol=1e-6
    )
    assert len(set(log["train/sampled"].values())) == STEPS


@pytest.mark.slow
def test_a_killed_process_that_samples_resumes_bit_for_bit(runs, tmp_path):
    made = runs("SAMPLER")
    again = made.copy_and_resolve_references()
    again.workdir = str(tmp_path / "run")
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(config.to_dict(parse(again))))
    command = [sys.executable, "-m", "tests.programs.killed_run", str(path), "5"]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert max(checkpoints.checkpoint_steps(tmp_path / "run" / "checkpoints")) < STEPS
    train.main(parse(again))
    assert_same(stored(again.workdir, STEPS), stored(made.workdir, STEPS))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"width": 8}, r"sizes of system '.*mine.py' lack 'vocab_size', .*which has width"),
        ({"vocab_size": 9}, r"mine.py' lacks sides, generates, example_batch"),
    ],
)
def test_what_a_system_of_a_user_lacks_is_named(tmp_path, size, message):
    file = tmp_path / "mine.py"
    file.write_text(
        "from t5x_like.systems.system import System\n"
        f"SYSTEM = System(name='mine', sizes={{'small': {size}}}, build=dict, tasks={{}})\n"
    )
    with pytest.raises(ValueError, match=message):
        systems.build(str(file), size)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests/toy_system.py", r"system='tests/toy_system.py' does not exist.*toy_systems.py"),
        ("tests/toy_systems.py:MEMORI", r"no System named 'MEMORI'. Did you mean 'MEMORY'\?"),
        ("tests/toy_systems.py", r"no System named 'SYSTEM'.*Allowed: .*TEACHER"),
    ],
)
def test_a_system_that_a_file_does_not_have_is_named(name, message):
    with pytest.raises(ValueError, match=message):
        systems.find(name)
