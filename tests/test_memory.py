"""A memory that goes from batch to batch: through steps, microbatches, devices, checkpoints."""

import functools

import jax
import numpy as np
import pytest

from t5x_like import config, partitioning, systems, train
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import parse
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from tests import toy_systems

STEPS, ROWS, LENGTH = 5, 8, 12


def settings(*, mesh=(2, 2, 1, 2), microbatches=1):
    made = config.defaults()
    made.system = f"{toy_systems.FILE}:MEMORY"
    made.model = systems.find(made.system).sizes["toy"]
    made.data.batch_size = ROWS
    made.train.microbatches = microbatches
    made.optimizer = {"name": "adamw", "schedule": "constant", "learning_rate": 0.01}
    made.mesh = dict(zip(partitioning.MESH_AXES, mesh, strict=True))
    return made


def batch(step):
    generator = np.random.default_rng(step)
    tokens = generator.integers(3, 384, (2, ROWS, LENGTH), np.int32)
    return {
        "decoder_input_tokens": tokens[0],
        "decoder_target_tokens": tokens[1],
        "decoder_loss_weights": np.ones((ROWS, LENGTH), np.float32),
    }


def started(model):
    carry = model.initial_carry(model.put(batch(0)))
    return model.initial_state().replace(carry=carry)


def step_on(model, state, steps):
    losses = []
    with partitioning.layout(model.mesh):
        for step in steps:
            state, metrics = model.train_step(state, model.put(batch(step)))
            losses.append(float(metrics["loss"].compute()))
    return state, losses


@functools.cache
def straight():
    """The model, the state after all steps, and their losses."""
    model = model_side.build(of_config(settings()))
    return model, *step_on(model, started(model), range(STEPS))


def assert_close(found, expected):
    # Float32 sums in another order, through five updates.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5),
        *[jax.device_get((state.params, state.carry)) for state in (found, expected)],
    )


def test_the_memory_matters_and_lies_where_its_rows_lie():
    model, state, losses = straight()
    assert state.carry.shape == (ROWS, 16)
    assert state.carry.sharding == model.put(batch(0))["decoder_input_tokens"].sharding
    fresh = started(model)
    _, first = step_on(model, fresh, range(1))
    assert first == losses[:1]
    before, _ = step_on(model, started(model), range(2))
    _, loss = step_on(model, before, range(2, 3))
    before, _ = step_on(model, started(model), range(2))
    nothing = before.replace(carry=model.initial_carry(model.put(batch(0))))
    assert step_on(model, nothing, range(2, 3))[1] != loss
    assert loss == losses[2:3]


def test_microbatches_split_the_memory_as_the_batch():
    _, expected, losses = straight()
    model = model_side.build(of_config(settings(microbatches=4)))
    found, divided = step_on(model, started(model), range(STEPS))
    np.testing.assert_allclose(divided, losses, rtol=2e-5)  # sums in another order
    assert_close(found, expected)


def test_one_device_computes_what_eight_do():
    _, expected, losses = straight()
    model = model_side.build(of_config(settings(mesh=(1, 1, 1, 1))), devices=jax.devices()[:1])
    found, alone = step_on(model, started(model), range(STEPS))
    np.testing.assert_allclose(alone, losses, rtol=2e-5)  # sums in another order
    assert_close(found, expected)


def test_a_saved_memory_resumes_bit_for_bit(tmp_path):
    model, expected, losses = straight()
    state, _ = step_on(model, started(model), range(3))
    with Checkpoints(tmp_path) as saver:
        saver.save(3, state)
        del state
        abstract = model.abstract_state_on(model.put(batch(0)))
        restored, _ = saver.restore_latest(abstract)
    assert restored.carry.sharding == abstract.carry.sharding
    found, rest = step_on(model, restored, range(3, STEPS))
    assert rest == losses[3:]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(expected))


def test_an_evaluation_has_a_memory_of_its_own():
    model, state, _ = straight()
    with partitioning.layout(model.mesh):
        found = model.measure(state.params, [batch(7), batch(8), batch(9)])
        again = model.measure(state.params, [batch(7), batch(8), batch(9)])
        apart = [model.measure(state.params, [batch(step)]) for step in (7, 8, 9)]
    assert found == again
    assert all(one["remembered"] == 0 for one in apart)
    assert found["remembered"] > 0
    assert found["loss"] != pytest.approx(np.mean([one["loss"] for one in apart]), rel=1e-7)


def on_text(tmp_path):
    """The settings of a run on a file of short lines."""
    made = settings()
    made.workdir = str(tmp_path / "run")
    (tmp_path / "text.txt").write_text("".join(f"line {n}\n" for n in range(100)))
    made.data.module = "data/text_files.py"
    made.data.settings = {"files": str(tmp_path / "text.txt"), "held_out": 0.2}
    made.data.task = "text_files"
    made.data.vocabulary = "bytes"
    made.data.objective = "language_modeling"
    made.data.converter = "decoder"
    made.data.lengths = {"targets": LENGTH}
    return made


def test_data_whose_rows_do_not_continue_are_refused_before_work_starts(tmp_path, capsys):
    made = on_text(tmp_path)
    made.data.shards = 1
    with pytest.raises(SystemExit):
        train.main(parse(made))
    assert "data.continue_rows=False, and system=" in capsys.readouterr().err


@pytest.mark.parametrize("first", [True, False])
def test_another_batch_size_for_rows_that_continue_is_refused_before_work_starts(
    tmp_path, capsys, first
):
    made = on_text(tmp_path)
    made.system = f"{toy_systems.FILE}:TEACHER"  # without a memory
    made.train.phases, made.train.steps = ("small", "large"), 2
    made.phases = {
        "small": {"steps": 1, "continue_rows": first},
        "large": {"steps": 1, "continue_rows": True, "batch_size": 2 * ROWS},
    }
    with pytest.raises(SystemExit):
        train.main(parse(made))
    assert "set the same data.batch_size wherever rows continue" in capsys.readouterr().err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
