"""The training loop: what it logs, saves and evaluates at which step, and how it stops."""

import os
import signal
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils

from t5x_like import stop_signal
from t5x_like.training import metrics as metrics_lib
from t5x_like.training import watchdog
from t5x_like.training.loop import Log, NonFiniteError, StepCost
from tests.recorded_loop import Numbers, Recorder, fit_recorded, start, step_on


def _weight(step):
    return step * (step + 1) / 2


def test_metrics_are_means_over_the_interval_weighted_by_their_counts():
    recorder = Recorder()
    fit_recorded(recorder, steps=10, every=4)
    assert list(recorder.scalars) == [4, 8, 10]
    for first, last in [(1, 4), (5, 8), (9, 10)]:
        steps = np.arange(first, last + 1)
        expected = np.average(_weight(steps), weights=steps)
        np.testing.assert_allclose(recorder.scalars[last]["train/loss"], expected, rtol=1e-6)


def test_metrics_that_are_arrays_are_numbers_and_a_picture_of_each_interval_and_evaluation():
    def step(state, batch):
        state, metrics = step_on(state, batch)
        one = jnp.arange(4) == state.step % 4  # all tokens go to one expert, another each step
        return state, metrics | metrics_lib.from_sums({"load": (one[None] * 5.0, jnp.float32(5))})

    recorder, shown = Recorder(), {}
    held_out = metrics_lib.from_sums({"load": (jnp.ones((1, 2)), jnp.float32(2))})
    fit_recorded(
        recorder,
        steps=6,
        every=4,
        train_step=jax.jit(step),
        hooks=[lambda step, values: shown.update({step: values})],
        evaluate=lambda state: {f"a/{k}": v for k, v in metrics_lib.compute(held_out).items()},
    )
    assert {key: image[0, :, :, 0].tolist() for key, image in recorder.images.items()} == {
        (4, "train/load"): [[0.25] * 4],
        (6, "train/load"): [[0, 0.5, 0.5, 0]],
        (6, "a/load"): [[0.5, 0.5]],
    }
    entropies = {s: x["train/load/layer_0/entropy"] for s, x in recorder.scalars.items()}
    assert entropies == pytest.approx({4: np.log(4), 6: np.log(2)})
    assert "train/load" not in recorder.scalars[4]
    assert recorder.scalars[6]["a/load/layer_0/busiest"] == 0.5
    assert shown[4]["load/layer_0/idlest"] == 0.25


def test_rates_leave_out_the_step_that_compiles():
    recorder = Recorder()
    shown = {}
    fit_recorded(
        recorder, steps=2, every=1, hooks=[lambda step, values: shown.update({step: values})]
    )
    assert "tokens_per_second" not in shown[1]
    assert shown[2]["tokens_per_second"] == pytest.approx(50 * shown[2]["examples_per_second"])
    assert shown[2]["seconds_left"] == 0
    assert recorder.scalars[2]["train/loss"] == shown[2]["loss"]


def test_saves_when_due_and_once_at_the_end():
    for steps, expected in [(10, [3, 6, 9, 10]), (9, [3, 6, 9])]:
        recorder = Recorder(every=3)
        outcome = fit_recorded(recorder, steps=steps)
        assert list(recorder.saved) == expected
        assert recorder.events[-1] == ("wait",)
        assert int(outcome.state.step) == steps
        assert not outcome.interrupted


def test_saved_position_is_that_of_the_saved_step():
    recorder = Recorder(every=3)
    fit_recorded(recorder, steps=7)
    assert recorder.saved == {step: (_weight(step), str(step).encode()) for step in (3, 6, 7)}


def test_iterator_without_a_position_is_saved_without_one():
    class Unpositioned(Numbers):
        def state(self):
            return None

    recorder = Recorder()
    fit_recorded(recorder, steps=2, batches=Unpositioned())
    assert recorder.saved == {2: (3.0, None)}


def test_goes_on_from_the_step_of_the_state():
    recorder = Recorder(every=4)
    outcome = fit_recorded(recorder, state=start(6), steps=10)
    assert (int(outcome.state.step), recorder.batches.read) == (10, 4)
    assert list(recorder.saved) == [8, 10]


@pytest.mark.parametrize("step", [10, 11])
def test_finished_run_does_nothing(step):
    recorder = Recorder(every=1)
    outcome = fit_recorded(recorder, state=start(step), steps=10)
    assert int(outcome.state.step) == step
    assert (recorder.saved, recorder.scalars, recorder.batches.read) == ({}, {}, 0)


@pytest.mark.parametrize("every", [0, 5])
def test_end_of_the_data_ends_the_run_and_is_saved_once(every, caplog):
    recorder = Recorder(every=every)
    outcome = fit_recorded(
        recorder, steps=10, batches=Numbers(end=5), evaluate=lambda state: {"x": 1.0}
    )
    assert int(outcome.state.step) == 5
    assert not outcome.interrupted
    assert recorder.saved == {5: (15.0, b"5")}
    assert recorder.scalars[5]["x"] == 1.0
    assert "the data ended at step 5 of 10" in caplog.text


def test_evaluates_at_its_interval_and_at_the_end_after_saving():
    recorder = Recorder(every=4)
    fit_recorded(
        recorder,
        steps=10,
        evaluate=lambda state: {"validation/weight": float(state.params["w"])},
        evaluate_every=4,
    )
    evaluated = {s: x["validation/weight"] for s, x in recorder.scalars.items()}
    assert evaluated == {step: _weight(step) for step in (4, 8, 10)}
    order = [event for event in recorder.events if event[-1] == 8]
    assert order == [("write", 8), ("save", 8), ("write", 8)]


def test_loss_that_is_not_finite_stops_the_run_and_names_its_step():
    def step(state, batch):
        state, metrics = step_on(state, batch)
        broken = jnp.where(state.step >= 6, jnp.nan, metrics["loss"].total)
        return state, {"loss": metrics["loss"].replace(total=broken)}

    recorder = Recorder(every=5)
    with pytest.raises(FloatingPointError, match="step 6"):
        fit_recorded(recorder, steps=20, every=4, train_step=jax.jit(step))
    assert list(recorder.saved) == [5]

    recorder = Recorder(every=7)
    with pytest.raises(FloatingPointError, match="step 6"):
        fit_recorded(recorder, steps=20, every=100, train_step=jax.jit(step))
    assert not recorder.saved


@pytest.mark.parametrize(("skipped", "stops_at"), [(9, None), (10, 13)])
def test_too_many_steps_in_a_row_that_are_skipped_stop_the_run(skipped, stops_at):
    def step(state, batch):
        state, metrics = step_on(state, batch)
        bad = (state.step > 3) & (state.step <= 3 + skipped)
        metrics = jax.tree.map(lambda x: jnp.where(bad, 0, x), metrics)
        return state, metrics | {"steps_skipped": metrics_lib.from_value(bad)}

    recorder = Recorder(every=100)
    if stops_at is None:
        fit_recorded(recorder, steps=30, every=4, train_step=jax.jit(step))
        assert recorder.scalars[8]["train/steps_skipped"] == 1
        assert recorder.scalars[16]["train/steps_skipped"] == 0
        return
    with pytest.raises(NonFiniteError, match="10 steps in a row were skipped up to step 13") as got:
        fit_recorded(recorder, steps=30, every=4, train_step=jax.jit(step))
    assert got.value.step == stops_at


@pytest.fixture
def watchdog_ends(monkeypatch):
    """Whether the watchdog has ended the process, which lives on."""
    ended = threading.Event()
    monkeypatch.setattr(watchdog.Watchdog, "_end", lambda self, limit: ended.set())
    return ended


@pytest.fixture
def later(monkeypatch):
    """Lets so many seconds pass on the watchdog's clock, and time for it to look."""
    now = [0.0]
    monkeypatch.setattr(watchdog, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(watchdog, "_LONGEST_POLL", 0.01)

    def pass_by(seconds):
        now[0] += seconds
        time.sleep(0.1)

    return pass_by


def test_no_step_for_too_long_ends_the_process(watchdog_ends, later):
    def step(state, batch):
        if batch == 3:
            later(301)
            assert watchdog_ends.wait(60), "nobody came"
        return step_on(state, batch)

    fit_recorded(Recorder(), steps=4, train_step=step, watchdog=watchdog.Watchdog(300))


@pytest.mark.parametrize("hangs", ["evaluate", "save", "wait"])
def test_a_pause_for_too_long_ends_the_process(hangs, watchdog_ends, later):
    def hang(*_):
        later(301)
        assert watchdog_ends.wait(60), "nobody came"
        return {"x": 1.0}

    recorder = Recorder(every=2)
    if hangs != "evaluate":
        setattr(recorder, hangs, hang)
    fit_recorded(
        recorder,
        steps=2,
        watchdog=watchdog.Watchdog(100, pause_timeout=300),
        evaluate=hang if hangs == "evaluate" else None,
    )


@pytest.mark.parametrize("pause_timeout", [0, 700])
def test_compilation_evaluation_and_checkpoints_take_their_time(
    pause_timeout, watchdog_ends, later
):
    class Slow(Recorder):
        def save(self, *arguments):
            later(600)
            super().save(*arguments)

        def wait(self):
            later(600)

    def step(state, batch):
        if batch == 1:
            later(600)  # as long as compiling
        return step_on(state, batch)

    fit_recorded(
        Slow(every=2),
        steps=4,
        train_step=step,
        watchdog=watchdog.Watchdog(300, pause_timeout),
        evaluate=lambda state: later(600) or {"x": 1.0},
        evaluate_every=2,
    )
    assert not watchdog_ends.is_set()


def test_a_step_of_several_processes_waits_for_none(monkeypatch):
    def absent(*_, **__):
        raise RuntimeError("NOT_FOUND: no collective, and nobody has asked to stop the run")

    client = types.SimpleNamespace(key_value_set=lambda *_: None, key_value_try_get=absent)
    monkeypatch.setattr(stop_signal.distributed.global_state, "client", client)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "make_array_from_process_local_data", absent)
    for name in ("process_allgather", "broadcast_one_to_all", "sync_global_devices"):
        monkeypatch.setattr(multihost_utils, name, absent)
    assert int(fit_recorded(Recorder(), steps=50).state.step) == 50


def test_parameters_that_are_not_finite_are_not_saved():
    def step(state, batch):
        state, metrics = step_on(state, batch)
        broken = jnp.where(state.step == 3, jnp.inf, state.params["w"])
        return state.replace(params={"w": broken}), metrics

    recorder = Recorder(every=3)
    with pytest.raises(FloatingPointError, match=r"param_norm is inf.* step 3"):
        fit_recorded(recorder, train_step=jax.jit(step))
    assert not recorder.saved


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_the_step_at_hand_and_ends_the_run(number):
    recorder = Recorder(every=100)
    before = signal.getsignal(number)
    during = []

    def step(state, batch):
        if int(state.step) == 4:
            os.kill(os.getpid(), number)
            during.append(signal.getsignal(signal.SIGINT))
        return step_on(state, batch)

    outcome = fit_recorded(
        recorder, steps=50, train_step=step, evaluate=lambda state: pytest.fail("too slow")
    )
    assert outcome.interrupted
    assert recorder.saved == {5: (15.0, b"5")}
    assert signal.getsignal(number) == before
    if number == signal.SIGINT:
        assert during == [signal.SIG_DFL]  # which a second Ctrl-C dies of


@pytest.mark.parametrize("steps", [2, 20])
def test_signal_ends_an_evaluation(steps):
    recorder = Recorder()

    def evaluate(state):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("went on")

    outcome = fit_recorded(recorder, steps=steps, evaluate=evaluate, evaluate_every=2)
    assert outcome.interrupted
    assert list(recorder.saved) == [min(steps, 3)]


def test_error_leaves_the_handlers_as_they_were():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError):
        fit_recorded(Recorder(), train_step=lambda state, batch: 1 / 0)
    assert signal.getsignal(signal.SIGTERM) == before


def test_runs_outside_of_the_main_thread():
    recorder = Recorder()
    thread = threading.Thread(target=fit_recorded, args=(recorder,))
    thread.start()
    thread.join()
    assert list(recorder.saved) == [10]


def test_log_interval_must_be_positive():
    with pytest.raises(ValueError, match=r"train\.log_every=0"):
        Log(Recorder(), every=0, cost={"": StepCost(tokens=1, examples=1)})
