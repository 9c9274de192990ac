"""Sequence parallelism: the same step, of which a device keeps a part of each position's states."""

import importlib

import jax
import numpy as np
import pytest

from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.research.planning import batches, compiling
from t5x_like.training import metrics


def step(name, *, sequence_parallel, lengths):
    """Metrics and parameters after a step on a mesh of 2 x 4, and bytes kept for going back."""
    settings = importlib.import_module(f"configs.{name}").get_config("demo")
    settings.mesh = {"data": 2, "model": 4}
    settings.model.update({"remat": "full", "loop": "scan"})
    settings.data.update({"batch_size": 6, "lengths": lengths})
    for name in settings.model:  # so that no other array begins with the number of layers
        if name.endswith("layers"):
            settings.model[name] = 5
    settings.train.sequence_parallel = sequence_parallel
    run = of_config(settings)
    own = batches.largest(run)
    model = model_side.build(run)
    random = np.random.default_rng(0)
    batch = {
        name: random.integers(1, 9, x.shape).astype(x.dtype)
        if "tokens" in name
        else np.ones(x.shape, x.dtype)
        for name, x in own.batch.items()
    }
    kept = compiling.compile_step(model, own.batch)["update"].memory["activations"]
    with model.layout():
        state, found = model.update(model.initial_state(), model.put(batch))
    return metrics.compute(jax.device_get(found)), jax.device_get(state.params), kept


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("llama", {"targets": 256}),
        # Four devices do not divide the targets.
        ("t5", {"inputs": 240, "targets": 66}),
    ],
)
def test_a_step_is_the_same_and_a_device_keeps_a_fourth(name, lengths):
    before, params, kept = step(name, sequence_parallel=False, lengths=lengths)
    other, found, less = step(name, sequence_parallel=True, lengths=lengths)
    for key, value in before.items():
        np.testing.assert_allclose(other[key], value, rtol=1e-5, err_msg=key)
    for (path, one), own in zip(
        jax.tree.leaves_with_path(found), jax.tree.leaves(params), strict=True
    ):
        np.testing.assert_allclose(one, own, atol=1e-5, err_msg=jax.tree_util.keystr(path))
    assert 0 < less < 0.28 * kept
