"""Adafactor's state in T5X's checkpoints: T5X continues a run as the run itself would.

tests/golden/make_t5x_adafactor.py froze steps of T5X's own Adafactor on T5X's own networks: with
separate layers (t5) and with stacked layers (umt5).
"""

import pathlib

import flax.serialization
import flax.traverse_util
import jax
import numpy as np
import optax
import pytest

from t5x_like import config as settings
from t5x_like import systems
from t5x_like.config import parse
from t5x_like.experiment import model_side, optimizer_state
from t5x_like.experiment.run import of_config
from t5x_like.pretrained.t5x import T5XCheckpoint
from t5x_like.pretrained.t5x_files import FILE, StoredArrays

pytestmark = pytest.mark.usefixtures("one_device")

STEP = 6  # of the first state in the file
FROZEN = pathlib.Path(__file__).parents[1] / "golden" / "t5x_adafactor.npz"
RATE = {"schedule": "rsqrt", "learning_rate": 1.0, "warmup_steps": 3}


@pytest.fixture(scope="module")
def frozen():
    """{network/step/name: array}: everything in the file."""
    with np.load(FROZEN) as file:
        return dict(file)


def of(frozen, *prefix):
    """The arrays below a prefix, by the rest of their names."""
    start = "/".join(map(str, prefix)) + "/"
    return {name.removeprefix(start): x for name, x in frozen.items() if name.startswith(start)}


def write(folder, target, state):
    """A checkpoint of T5X with these parameters and this state, all in its file."""
    folder.mkdir()
    parts = {"target": target, "state": state}
    parts = {k: flax.traverse_util.unflatten_dict(x, sep="/") for k, x in parts.items()}
    tree = {"version": 3, "optimizer": parts}
    (folder / FILE).write_bytes(flax.serialization.msgpack_serialize(tree))
    return folder


def run_config(folder, *, loop="scan", **optimizer):
    """A run that continues from a checkpoint."""
    config, source = settings.defaults(), T5XCheckpoint(folder)
    config.system = source.system
    config.model = source.config | {"dropout": 0.0, "loop": loop}
    config.optimizer = {"name": "adafactor", "min_dim_size_to_factor": 8, **RATE, **optimizer}
    config.initialize, config.initialize_optimizer = f"t5x:{folder}", True
    config.train.steps = 20
    return config


def updated(model, state, gradients):
    """The state after a step with these gradients."""
    steps, opt_state = jax.jit(model.optimizer.update)(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, steps)
    return state.replace(step=state.step + 1, params=params, opt_state=opt_state)


def assert_written(folder, expected, **tolerance):
    """The checkpoint has T5X's names, shapes and dtypes, and these values."""
    for part in ("target", "state"):
        stored, wanted = StoredArrays(folder, part=part), of(expected, part)
        assert set(stored.names) == set(wanted)
        for name, array in wanted.items():
            found = stored.read(name, (slice(None),) * array.ndim)
            assert (found.shape, found.dtype) == (array.shape, array.dtype), name
            np.testing.assert_allclose(found, array, **tolerance, err_msg=name)


@pytest.mark.parametrize(
    ("network", "loop"), [("t5", "scan"), ("t5", "unroll"), ("umt5", "scan"), ("umt5", "unroll")]
)
def test_t5x_continues_from_what_is_written(frozen, tmp_path, network, loop):
    before = of(frozen, network, STEP)
    start = write(tmp_path / "start", of(before, "target"), of(before, "state"))
    config = run_config(start, loop=loop)
    model = model_side.build(of_config(config))
    state = model.initial_state()
    written = {"settings": parse(config), "axes": model.axes}
    optimizer_state.write(state, tmp_path / "same", **written)
    assert_written(tmp_path / "same" / f"checkpoint_{STEP}", before, rtol=0)
    # Two steps, each written and read again, beside two of T5X.
    for step in (STEP, STEP + 1):
        slopes = write(tmp_path / f"slopes_{step}", of(frozen, network, step, "gradient"), {})
        shapes = flax.traverse_util.flatten_dict(model.shapes.params, sep="/")
        gradients = T5XCheckpoint(slopes).read(shapes, whole=True)
        gradients = flax.traverse_util.unflatten_dict(gradients, sep="/")
        state = updated(model, state, gradients)
        optimizer_state.write(state, tmp_path / "next", **written)
        folder = tmp_path / "next" / f"checkpoint_{step + 1}"
        assert_written(folder, of(frozen, network, step + 1), rtol=1e-5, atol=1e-6)
        config.initialize = f"t5x:{folder}"
        again = model_side.build(of_config(config)).initial_state()
        jax.tree.map(np.testing.assert_array_equal, again.opt_state, state.opt_state)
        jax.tree.map(np.testing.assert_array_equal, again.params, state.params)
        assert int(again.step) == step + 1


def test_factors_are_in_the_file_where_t5x_reads_them(frozen, tmp_path):
    """T5X does not partition v_row and v_col, and gives JAX no sharding to read folders with."""
    before = of(frozen, "umt5", STEP)
    config = run_config(write(tmp_path / "start", of(before, "target"), of(before, "state")))
    model = model_side.build(of_config(config))
    optimizer_state.write(
        model.initial_state(), tmp_path / "out", settings=parse(config), axes=model.axes
    )
    tree = flax.serialization.msgpack_restore(
        (tmp_path / "out" / f"checkpoint_{STEP}" / FILE).read_bytes()
    )
    kernel = tree["optimizer"]["state"]["param_states"]["encoder"]["encoder"]["mlp"]["wo"]["kernel"]
    assert all(isinstance(kernel[kind], np.ndarray) for kind in ("m", "v", "v_row", "v_col"))
    scale = tree["optimizer"]["state"]["param_states"]["encoder"]["encoder"]["pre_mlp_layer_norm"]
    # By these keys T5X's state_utils knows an array in a folder, and its checkpoints read it.
    array = scale["scale"]["v"]
    assert array.keys() >= {"driver", "kvstore", "metadata"}
    assert array["metadata"].keys() >= {"shape", "chunks", "compressor"}


def check(system, **optimizer):
    """Whether the state of a run can be written, without its arrays."""
    config = settings.defaults()
    config.system = system
    size = {"t5": "small", "umt5": "small", "switch": "base_8"}[system]
    config.model = systems.find(system).sizes[size] | {"d_model": 64, "vocab_size": 256}
    config.optimizer = {"name": "adafactor", **RATE, **optimizer}
    model = model_side.build(of_config(config))
    optimizer_state.check_written(model.shapes, settings=parse(config), axes=model.axes)


def test_what_t5xs_adafactor_has_no_form_for_is_refused():
    check("t5")
    for optimizer, message in {
        ("momentum", 0.9): "without momentum",
        ("weight_decay", 0.1): r"optimizer\.weight_decay=0\.1: T5X's adafactor has no such",
        ("clip_value", 1.0): r"optimizer\.clip_value=1\.0: T5X's adafactor has no such",
        ("frozen", ("token_embedder",)): "T5X's adafactor keeps moments of all",
    }.items():
        with pytest.raises(ValueError, match=message):
            check("t5", **dict([optimizer]))
    with pytest.raises(ValueError, match="experts by special rules"):
        check("switch")
    with pytest.raises(ValueError, match=r"are not factored here, and factored by T5X, which st"):
        check("umt5")
    with pytest.raises(ValueError, match=r"bias.* are factored here, and not factored by T5X"):
        check("umt5", min_dim_size_to_factor=1)
