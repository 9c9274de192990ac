"""The host beside the device: it waits for no metric, and reads batches in another thread."""

import threading

import jax
import jax.numpy as jnp

from t5x_like.training import metrics as metrics_lib
from tests.recorded_loop import Numbers, Recorder, fit_recorded, step_on


def test_metrics_are_written_while_two_steps_are_queued():
    recorder = Recorder()

    def step(state, batch):
        recorder.events.append(("step",))
        return step_on(state, batch)

    fit_recorded(recorder, steps=6, every=2, checkpoints=None, train_step=step)
    assert recorder.events == [
        *[("step",)] * 4,
        ("write", 2),
        *[("step",)] * 2,
        ("write", 4),
        ("write", 6),
        ("flush",),
    ]


def test_no_metric_is_fetched_before_the_device_has_computed_it(monkeypatch):
    large = jnp.full((400, 400), 1e-3)

    @jax.jit
    def slow(state, batch):
        product = jax.lax.fori_loop(0, 20, lambda _, x: x @ large, large)
        state, metrics = step_on(state, batch)
        total = metrics["loss"].total + 0 * product[0, 0]
        return state, {"loss": metrics["loss"].replace(total=total)}

    ready, compute = [], metrics_lib.compute

    def watched(metrics):
        ready.append(all(x.is_ready() for x in jax.tree.leaves(metrics)))
        return compute(metrics)

    monkeypatch.setattr(metrics_lib, "compute", watched)
    recorder = Recorder()
    fit_recorded(recorder, steps=12, every=1, checkpoints=None, train_step=slow)
    assert len(ready) == 12
    assert all(ready[:-2])  # at the end the host waits for the last two


def test_the_next_batch_is_read_and_put_in_another_thread_after_the_position():
    here, threads, order = threading.get_ident(), [], []

    class Watched(Numbers):
        def __next__(self):
            order.append("read")
            return super().__next__()

        def state(self):
            threads.append(threading.get_ident())
            order.append("position")
            return super().state()

    def put(batch):
        threads.append(threading.get_ident())
        return jnp.asarray(batch)

    recorder = Recorder(every=2)
    fit_recorded(recorder, steps=4, batches=Watched(), put=put)
    assert order == ["read", "read", "position", "read", "read", "position"]
    assert threads.pop(0) == here  # the first batch, for which there is nothing else to do
    assert here not in threads
