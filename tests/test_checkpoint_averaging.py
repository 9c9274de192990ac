"""The mean of checkpoints: exact, on any mesh, of the newest intact ones; resuming goes without."""

import shutil

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import t5x_like
from t5x_like import checkpoints, convert, systems
from t5x_like.checkpoints import CheckpointError, Checkpoints
from t5x_like.systems import transformer
from tests.saved_states import abstract_of, assert_same, make_mesh, make_state, save_all

STEPS = (10, 20, 30, 40)
TINY = transformer.SIZES["base"] | {
    **{"vocab_size": 24, "layers": 1, "d_model": 8, "d_ff": 8, "heads": 1, "d_k": 8, "d_v": 8},
}


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four") / "checkpoints"
    save_all(folder, {step: make_state(seed=step) for step in STEPS}, keep=4)
    return folder


@pytest.fixture
def copy(four, tmp_path):
    return shutil.copytree(four, tmp_path / "checkpoints")


def mean(steps):
    params = [make_state(seed=step).params for step in steps]
    return jax.tree.map(
        lambda *leaves: np.mean([np.asarray(x, np.float64) for x in leaves], axis=0), *params
    )


def assert_close(found, expected):
    # bfloat16 keeps 8 bits of a mean, float32 24.
    for new, old in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        tolerance = 2**-8 if new.dtype == jnp.bfloat16 else 2**-22
        np.testing.assert_allclose(np.asarray(new, np.float64), old, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_it_is_the_mean_of_the_newest(count, four):
    params, step = checkpoints.restore_params(four, average=count)
    assert step == 40
    assert_close(params, mean(STEPS[-count:]))
    stored = make_state().params
    assert jax.tree.map(lambda x: x.dtype, params) == jax.tree.map(lambda x: x.dtype, stored)


def test_on_a_mesh_and_in_another_type(four):
    abstract = abstract_of(make_state().params, mesh=make_mesh(4, 2), spec=P("a", "b"))
    params, _ = checkpoints.restore_params(four, abstract, average=3)
    assert_close(params, mean(STEPS[1:]))
    for new, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(abstract), strict=True):
        assert (new.sharding, new.dtype) == (wanted.sharding, wanted.dtype)
    half = jax.tree.map(lambda leaf: leaf.update(dtype=jnp.bfloat16), abstract)
    params, _ = checkpoints.restore_params(four, half, average=3)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    # Summed in float32, rounded once: within half a step of 8 bits.
    assert_close(params, mean(STEPS[1:]))


def test_a_damaged_one_is_left_out(copy, caplog):
    for path in (copy / "30" / "params").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    params, step = checkpoints.restore_params(copy, average=3)
    assert step == 40
    assert_close(params, mean([10, 20, 40]))
    assert "30 is damaged" in caplog.text
    with pytest.raises(CheckpointError, match=r"average=4: there are 3 intact .*keep=4"):
        checkpoints.restore_params(copy, average=4)


def test_wrong_numbers_are_errors(four):
    with pytest.raises(CheckpointError, match="average=5: there are 4 intact"):
        checkpoints.restore_params(four, average=5)
    with pytest.raises(CheckpointError, match="average=0 must be 1 or more"):
        checkpoints.restore_params(four, average=0)
    with pytest.raises(CheckpointError, match=r"average=2: there are 1 intact"):
        checkpoints.restore_params(four / "20", average=2)


def test_resuming_goes_on_from_the_newest_and_not_from_a_mean(four):
    checkpoints.restore_params(four, average=4)
    with Checkpoints(four) as reader:
        state, _ = reader.restore_latest(abstract_of(make_state()))
    assert_same(state, make_state(seed=40))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder like a run's, with three checkpoints of a tiny Transformer."""
    folder = tmp_path_factory.mktemp("run")
    module = systems.build("transformer", TINY)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch())["params"]))
    states = {step: make_state().replace(params=init(jax.random.key(step))) for step in (1, 2, 3)}
    metadata = {"config": {"system": "transformer", "model": TINY}}
    save_all(folder / "checkpoints", states, metadata=metadata, keep=3)
    return folder, [state.params for state in states.values()]


def test_from_pretrained_and_convert_take_the_mean(run, tmp_path, capsys):
    folder, params = run
    expected = jax.tree.map(lambda *x: np.mean(x, axis=0, dtype=np.float64), *params[1:])
    assert_close(t5x_like.from_pretrained(folder, average=2).params, expected)
    target = tmp_path / "mean"
    convert.main([f"--from={folder}", f"--to={target}", "--format=t5x_like", "--average=2"])
    assert "mean" in capsys.readouterr().out
    assert_close(t5x_like.from_pretrained(target).params, expected)
    with pytest.raises(ValueError, match="average=4: there are 3"):
        t5x_like.from_pretrained(folder, average=4)


def test_a_folder_of_hugging_faces_holds_one_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match=r"average=2: .* only the checkpoints of a run"):
        t5x_like.from_pretrained(tmp_path, average=2)
