"""ELMo in training: over a mesh, through checkpoints with its memory, and under a task."""

import functools

import jax
import numpy as np
import pytest

from t5x_like import config, partitioning
from t5x_like.checkpoints import Checkpoints
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.systems import elmo

STEPS, ROWS, LENGTH = 4, 8, 6
TINY = elmo.SIZES["small"] | {
    "vocab_size": 32,
    "filters": ((1, 4), (3, 12)),
    "cell": 12,
    "d_model": 8,
    "task_width": 8,
}


def settings(*, mesh=(2, 2, 1, 2)):
    made = config.defaults()
    made.system = "elmo"
    made.model = TINY
    made.loss = {"sampled": 16}
    made.data.batch_size = ROWS
    made.optimizer = {
        "name": "adagrad",
        "schedule": "constant",
        "learning_rate": 0.2,
        "initial_accumulator": 0.01,
        "clip_norm": 0.5,
    }
    made.mesh = dict(zip(partitioning.MESH_AXES, mesh, strict=True))
    return made


def batch(step):
    random = np.random.default_rng(step)
    characters = random.integers(1, 262, (2, ROWS, LENGTH, 50), np.int32)
    targets = random.integers(0, TINY["vocab_size"], (2, ROWS, LENGTH), np.int32)
    return {
        "encoder_characters": characters[0],
        "encoder_backward_characters": characters[1],
        "encoder_target_tokens": targets[0],
        "encoder_backward_targets": targets[1],
        "encoder_loss_weights": np.ones([ROWS, LENGTH], np.float32),
        "encoder_segment_ids": np.ones([ROWS, LENGTH], np.int32),
    }


def started(model):
    return model.initial_state().replace(carry=model.initial_carry(model.put(batch(0))))


def step_on(model, state, steps):
    losses = []
    with partitioning.layout(model.mesh):
        for step in steps:
            state, metrics = model.train_step(state, model.put(batch(step)))
            losses.append(float(metrics["loss"].compute()))
    return state, losses


@functools.cache
def straight():
    """The model on eight devices, the state after all steps, and their losses."""
    model = model_side.build(of_config(settings()))
    return model, *step_on(model, started(model), range(STEPS))


@pytest.mark.slow
def test_one_device_computes_what_eight_do():
    _, expected, losses = straight()
    shards = {
        name: expected.params[part][layer][name].sharding.spec
        for part, layer, name in (
            ("lstm", "layer_0", "recurrent"),
            ("lstm", "layer_1", "projection"),
        )
    }
    assert tuple(shards["recurrent"]) == (None, "fsdp", None, "model")
    assert tuple(shards["projection"]) == (None, "model", "fsdp")
    alone = model_side.build(of_config(settings(mesh=(1, 1, 1, 1))), devices=jax.devices()[:1])
    found, others = step_on(alone, started(alone), range(STEPS))
    np.testing.assert_allclose(others, losses, rtol=2e-5)  # sums in another order
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5),
        *[jax.device_get((one.params, one.carry)) for one in (found, expected)],
    )


def test_a_saved_memory_resumes_bit_for_bit(tmp_path):
    model, expected, losses = straight()
    state, _ = step_on(model, started(model), range(2))
    assert np.abs(np.asarray(state.carry.memory)).max() > 0
    with Checkpoints(tmp_path) as saver:
        saver.save(2, state)
        del state
        abstract = model.abstract_state_on(model.put(batch(0)))
        restored, _ = saver.restore_latest(abstract)
    found, rest = step_on(model, restored, range(2, STEPS))
    assert rest == losses[2:]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(expected))
