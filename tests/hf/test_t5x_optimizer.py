"""Runs that go on from a T5X checkpoint: the next update is the one that T5X's Adafactor makes."""

import gc
import weakref

import flax.serialization
import flax.traverse_util
import jax
import numpy as np
import optax
import pytest

from t5x_like import config as settings
from t5x_like import train
from t5x_like.config import parse
from t5x_like.experiment import model_side, optimizer_state, reporting
from t5x_like.experiment.run import of_config
from t5x_like.hf import weight_map
from t5x_like.nn.stack import unstack_layers
from t5x_like.pretrained import t5x
from t5x_like.pretrained.t5x_files import FILE, StoredArrays
from t5x_like.pretrained.t5x_optimizers import read_moment
from tests.hf.test_t5x_checkpoints import DECODER, decoder_arrays, write_tree
from tests.programs import tiny_t5

STEP, LAYERS = 6, 2
# Sides of 128 and more are factored; query, key and value have two equal ones.
SIZES = {"vocab_size": 384, "d_model": 128, "d_ff": 144, "heads": 2, "d_kv": 64}
SIZES |= {"encoder_layers": LAYERS, "decoder_layers": LAYERS, "dropout": 0.0}


def run_config(**optimizer):
    config = settings.defaults()
    config.model = DECODER | SIZES
    rate = {"schedule": "rsqrt", "learning_rate": 1.0, "warmup_steps": 3}
    config.optimizer = {"name": "adafactor", **rate, **optimizer}
    config.train.steps = 20
    return config


def in_t5x(tree):
    """A tree like the parameters, by T5X's names."""
    decoder = {
        **tree["decoder"],
        "layers": unstack_layers(tree["decoder"]["layers"], layers=LAYERS),
    }
    return decoder_arrays(flax.traverse_util.flatten_dict({**tree, "decoder": decoder}, sep="/"))


def is_factored(array):
    return array.ndim == 2 and min(array.shape) >= 128


def random_state(arrays):
    """The state of T5X's Adafactor after some steps; v_row is that of the smaller side."""
    random, states = np.random.default_rng(0), {}
    for name, array in arrays.items():
        v = random.uniform(1e-4, 4e-2, array.shape).astype(np.float32)
        one = {kind: np.zeros(1, np.float32) for kind in ("m", "v", "v_row", "v_col")}
        if is_factored(array):
            largest = int(np.argsort(array.shape)[-1])
            one |= {"v_row": v.mean(largest), "v_col": v.mean(1 - largest)}
        else:
            one["v"] = v
        states |= {f"{name}/{kind}": value for kind, value in one.items()}
    return states


def updated(array, gradient, v, v_row, v_col):
    """A step of Adafactor in T5X's form, in NumPy: decay 0.8, rate 1 / sqrt(max(step, 3))."""
    decay, squared = 1 - (STEP + 1.0) ** -0.8, gradient**2 + 1e-30
    if is_factored(array):
        smaller, largest = (int(n) for n in np.argsort(array.shape)[-2:])
        v_row = decay * v_row + (1 - decay) * squared.mean(largest)
        v_col = decay * v_col + (1 - decay) * squared.mean(smaller)
        row, column = (v_row / v_row.mean()) ** -0.5, v_col**-0.5
        step = gradient * np.expand_dims(row, largest) * np.expand_dims(column, smaller)
    else:
        step = gradient * (decay * v + (1 - decay) * squared) ** -0.5
    step /= max(1, np.sqrt((step**2).mean()))
    return array - STEP**-0.5 * max(1e-3, np.sqrt((array**2).mean())) * step


@pytest.fixture(scope="module")
def start():
    """The parameters of a run, and gradients."""
    params = jax.device_get(model_side.build(of_config(run_config())).initial_state().params)
    random = np.random.default_rng(1)
    gradients = jax.tree.map(
        lambda x: random.normal(scale=0.1, size=x.shape).astype(np.float32), params
    )
    return params, gradients


@pytest.fixture(scope="module")
def folder(start, tmp_path_factory):
    """A checkpoint of T5X after STEP steps."""
    arrays, path = in_t5x(start[0]), tmp_path_factory.mktemp("t5x") / "checkpoint_6"
    write_tree(path, arrays)
    tree = flax.serialization.msgpack_restore((path / FILE).read_bytes())
    states = flax.traverse_util.unflatten_dict(random_state(arrays), sep="/")
    tree["optimizer"]["state"] = {"step": np.int32(STEP), "param_states": states}
    (path / FILE).write_bytes(flax.serialization.msgpack_serialize(tree))
    return path


@pytest.mark.parametrize("loop", ["scan", "unroll"])
def test_the_next_update_is_t5xs(start, folder, loop):
    config = run_config()
    config.model.loop = loop
    config.initialize, config.initialize_optimizer = f"t5x:{folder}", True
    run = of_config(config)
    opened = weakref.ref(run.source)
    model = model_side.build(run)
    state = model.initial_state()
    assert int(state.step) == STEP
    gc.collect()
    assert opened() is None  # its file is in memory as long as it is open
    params, gradients = start
    if loop == "unroll":
        layers = unstack_layers(gradients["decoder"]["layers"], layers=LAYERS)
        gradients = {**gradients, "decoder": {**gradients["decoder"], "layers": layers}}
    steps, _ = jax.jit(model.optimizer.update)(gradients, state.opt_state, state.params)
    found = optax.apply_updates(state.params, steps)
    if loop == "scan":
        found = in_t5x(found)
    else:
        found = decoder_arrays(flax.traverse_util.flatten_dict(found, sep="/"))
    states, slopes = random_state(in_t5x(params)), in_t5x(start[1])
    for name, array in in_t5x(params).items():
        moments = (states[f"{name}/{kind}"] for kind in ("v", "v_row", "v_col"))
        expected = updated(array, slopes[name], *moments)
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
        assert np.abs(expected - array).max() > 1e-4


def test_stacked_layers_have_the_hidden_state_as_the_row(tmp_path):
    there, ours = "encoder/encoder/attention", "encoder/layers/block/self_attention"
    v = np.random.default_rng(2).uniform(size=(3, 2, 4, 5)).astype(np.float32)  # [D, L, H, K]
    states = {
        f"{there}/query/kernel/v_row": v.mean((2, 3)),
        f"{there}/query/kernel/v_col": v.mean(0),
        f"{there}/query/kernel/v": v,
    }
    write_tree(tmp_path, {"x": v[0]})
    tree = flax.serialization.msgpack_restore((tmp_path / FILE).read_bytes())
    tree["optimizer"]["state"] = {
        "param_states": flax.traverse_util.unflatten_dict(states, sep="/")
    }
    (tmp_path / FILE).write_bytes(flax.serialization.msgpack_serialize(tree))
    stored = StoredArrays(tmp_path, part="state")
    weights = t5x.stacked(encoder=2, decoder=2)
    parts = weight_map.pieces(weights, {f"{ours}/query/kernel": (2, 3, 4, 5)})
    expected = {(2, 3): v.mean((2, 3)).T, (1,): v.mean(0), (): v.transpose(1, 0, 2, 3)}
    for averaged, moment in expected.items():
        leaf = jax.ShapeDtypeStruct(moment.shape, np.float32)
        found = read_moment(stored, parts[f"{ours}/query/kernel"], leaf, averaged=averaged)
        np.testing.assert_array_equal(found, moment)


def read(folder, *, steps=20, **optimizer):
    made = run_config(**optimizer)
    made.initialize, made.train.steps = str(folder), steps
    run = of_config(made)
    model = model_side.build(run)
    shapes = model.abstract_state
    return optimizer_state.read(shapes, run, shapes=shapes, axes=model.axes)


def test_what_cannot_go_on_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"v of .* the moments are not factored here and factored"):
        read(folder, min_dim_size_to_factor=1000)
    with pytest.raises(ValueError, match="more state than Adafactor's second moments"):
        read(folder, momentum=0.9)
    with pytest.raises(ValueError, match="more state than Adafactor's second moments"):
        read(folder, name="lamb")
    with pytest.raises(ValueError, match=r"has no moment mu of .* from a single Adam of optax"):
        read(folder, name="adamw")
    with pytest.raises(ValueError, match=r"train\.steps=6 must be more than the 6 steps"):
        read(folder, steps=6)
    with pytest.raises(ValueError, match="initialize='' must be a checkpoint of T5X"):
        read("")
    tree = flax.serialization.msgpack_restore((folder / FILE).read_bytes())
    states = tree["optimizer"]["state"]["param_states"]["decoder"]
    del states["decoder_norm"]["scale"]["v"]
    (tmp_path / FILE).write_bytes(flax.serialization.msgpack_serialize(tree))
    with pytest.raises(ValueError, match="has no v of decoder/decoder_norm/scale: only the state"):
        read(tmp_path)
    del tree["optimizer"]["state"]
    (tmp_path / FILE).write_bytes(flax.serialization.msgpack_serialize(tree))
    with pytest.raises(ValueError, match="has no optimizer state"):
        read(tmp_path)


def changed(folder, target, change):
    """The checkpoint with another tree of `param_states`, changed by path."""
    tree = flax.serialization.msgpack_restore((folder / FILE).read_bytes())
    state = tree["optimizer"]["state"]
    leaves = change(flax.traverse_util.flatten_dict(state["param_states"], sep="/"))
    state["param_states"] = flax.traverse_util.unflatten_dict(leaves, sep="/")
    (target / FILE).write_bytes(flax.serialization.msgpack_serialize(tree))
    return target


def test_parameters_that_a_multi_optimizer_leaves_out_are_frozen_here(folder, tmp_path):
    """It keeps None in place of their states, and those of two Adafactors as one of all."""
    table = "decoder/token_embedder/embedding"

    def leave_out(leaves):
        return {k: x for k, x in leaves.items() if not k.startswith(table)} | {table: None}

    changed(folder, tmp_path, leave_out)
    with pytest.raises(ValueError, match=rf"state of {table} is empty: .*\(optimizer.frozen\)"):
        read(tmp_path)
    state = read(tmp_path, frozen=("token_embedder",))
    found, everything = (len(jax.tree.leaves(one.opt_state)) for one in (state, read(folder)))
    assert found == everything - 2  # the means over its rows and over its columns


def test_a_multi_optimizer_of_different_adafactors_is_refused(folder, tmp_path):
    def add_momentum(leaves):
        name = "decoder/decoder_norm/scale"
        return leaves | {f"{name}/m": np.ones_like(leaves[f"{name}/v"])}

    changed(folder, tmp_path, add_momentum)
    with pytest.raises(
        ValueError, match=r"has decoder/decoder_norm/scale/m and no .*/m: of a Multi"
    ):
        read(tmp_path)

    def factor_less(leaves):  # as an Adafactor with a larger min_dim_size_to_factor for the table
        name, shape = "decoder/token_embedder/embedding", (SIZES["vocab_size"], SIZES["d_model"])
        none = np.zeros(1, np.float32)
        own = {"v": np.ones(shape, np.float32), "v_row": none, "v_col": none}
        return leaves | {f"{name}/{kind}": value for kind, value in own.items()}

    changed(folder, tmp_path, factor_less)
    with pytest.raises(ValueError, match=r"embedding .* the moments are factored here and not in"):
        read(tmp_path)


def test_a_list_of_states_is_refused(folder, tmp_path):
    tree = flax.serialization.msgpack_restore((folder / FILE).read_bytes())
    states = {"0": np.zeros(1, np.float32)}
    one = {"step": np.int32(STEP), "param_states": states}
    tree["optimizer"]["state"] = {"0": one, "1": one}
    (tmp_path / FILE).write_bytes(flax.serialization.msgpack_serialize(tree))
    with pytest.raises(ValueError, match="is a list of states, which do not name their parameters"):
        read(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_run_goes_on_from_the_step_and_resumes(folder, tmp_path, capsys):
    config = tiny_t5.get_config(str(tmp_path))
    config.update(run_config())
    config.data.update(tiny_t5.get_config(str(tmp_path)).data)
    config.workdir, config.initialize = str(tmp_path / "run"), f"t5x:{folder}"
    config.initialize_optimizer, config.train.log_every = True, 1
    for steps in (9, 12):
        config.train.steps = config.checkpoint.every = steps
        train.main(parse(config))
    assert "going on from step 9" in capsys.readouterr().out
    assert sorted(reporting.read_log(tmp_path / "run")["train/loss"]) == [7, 8, 9, 10, 11, 12]
