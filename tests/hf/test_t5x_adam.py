"""Adam's moments in T5X's checkpoints: runs that go on as optax does there, and the way back."""

import flax.serialization
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_like import config as settings
from t5x_like import convert, systems
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import parse
from t5x_like.experiment import model_side, optimizer_state
from t5x_like.experiment.run import of_config
from t5x_like.hf import weight_map
from t5x_like.nn.stack import unstack_layers
from t5x_like.pretrained import from_pretrained, t5x, t5x_optimizers
from t5x_like.pretrained.t5x_files import FILE, StoredArrays
from tests.hf.test_t5x_checkpoints import DECODER, decoder_arrays, write_array, write_tree

STEP, LAYERS = 6, DECODER["decoder_layers"]
MODEL = DECODER | {"dropout": 0.0}
RATE = {"schedule": "linear", "learning_rate": 0.01, "warmup_steps": 3, "decay_steps": 20}
RATE |= {"end_learning_rate": 0.002}


def schedule(step):
    """The schedule RATE, as its docstring says it."""
    return jnp.where(step < 3, 0.01 * step / 3, 0.01 - 0.008 * (step - 3) / 17)


def run_config(*, loop="scan", **optimizer):
    config = settings.defaults()
    config.model = MODEL | {"loop": loop}
    config.optimizer = {"name": "adamw", "b2": 0.98, "epsilon": 1e-6, **RATE, **optimizer}
    config.train.steps = 20
    return config


def in_t5x(tree):
    """A tree like the parameters, nested by T5X's names."""
    if "block" in tree["decoder"]["layers"]:
        layers = unstack_layers(tree["decoder"]["layers"], layers=LAYERS)
        tree = {**tree, "decoder": {**tree["decoder"], "layers": layers}}
    arrays = decoder_arrays(flax.traverse_util.flatten_dict(tree, sep="/"))
    return flax.traverse_util.unflatten_dict(arrays, sep="/")


def optax_in_t5x(*, clip=0.0, rate=schedule, **given):
    """The optimizer of a gin file of T5X: `optimizers.adamw`, or `optimizers.chain`."""
    adam = optax.adamw(rate, **{"b2": 0.98, "eps": 1e-6, "weight_decay": 0.0, **given})
    return optax.chain(optax.clip_by_global_norm(clip), adam) if clip else adam


def random_like(tree, seed):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda x: random.normal(size=x.shape).astype(np.float32), tree)


def after_steps(optimizer, params):
    """The state of an optimizer of optax after STEP steps of random gradients."""
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for seed in range(STEP):
        _, state = update(random_like(params, seed), state, params)
    return state


def state_dict(state):
    """The state as T5X's OptaxWrapper makes it a tree: without parts that have no state."""
    flat = flax.traverse_util.flatten_dict(flax.serialization.to_state_dict(state), sep="/")
    return {name: np.asarray(leaf) for name, leaf in flat.items()}


def write(folder, params, states, *, step=STEP, in_folders=False):
    """A checkpoint of T5X with these leaves of `param_states`."""
    write_tree(folder, flax.traverse_util.flatten_dict(params, sep="/"))
    leaves = dict(states)
    for name, array in states.items() if in_folders else ():
        place = f"state.param_states.{name.replace('/', '.')}"
        write_array({"driver": "file", "path": str(folder / place)}, array)
        leaves[name] = f"PLACEHOLDER://{place}"
    tree = flax.serialization.msgpack_restore((folder / FILE).read_bytes())
    states = flax.traverse_util.unflatten_dict(leaves, sep="/")
    tree["optimizer"]["state"] = {"step": np.int32(step), "param_states": states}
    (folder / FILE).write_bytes(flax.serialization.msgpack_serialize(tree))
    return folder


@pytest.fixture(scope="module")
def params():
    """The parameters of a run, layers apart."""
    model = model_side.build(of_config(run_config(loop="unroll")))
    return jax.device_get(model.initial_state().params)


@pytest.mark.parametrize(
    ("loop", "clip", "in_folders"), [("scan", 0.0, False), ("unroll", 0.5, True)]
)
def test_the_next_update_is_that_of_optax_in_t5x(params, tmp_path, loop, clip, in_folders):
    theirs, optimizer = in_t5x(params), optax_in_t5x(clip=clip)
    before = after_steps(optimizer, theirs)
    write(tmp_path, theirs, state_dict(before), in_folders=in_folders)
    config = run_config(loop=loop, **({"clip_norm": clip} if clip else {}))
    config.initialize, config.initialize_optimizer = f"t5x:{tmp_path}", True
    model = model_side.build(of_config(config))
    state = model.initial_state()
    assert int(state.step) == STEP
    gradients = random_like(state.params, STEP)
    found, _ = jax.jit(model.optimizer.update)(gradients, state.opt_state, state.params)
    expected, _ = optimizer.update(in_t5x(gradients), before, theirs)
    jax.tree.map(  # the sums of float32 are in another order
        lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-8), in_t5x(found), expected
    )
    assert all(np.abs(x).max() > 1e-3 for x in jax.tree.leaves(expected))


def test_moments_of_stacked_layers(tmp_path):
    random, tensor = np.random.default_rng(2), "encoder/encoder/attention/query/kernel"
    mu, nu = (random.uniform(size=(3, 2, 4, 5)).astype(np.float32) for _ in range(2))  # [D,L,H,K]
    states = {f"0/mu/{tensor}": mu, f"0/nu/{tensor}": nu, "0/count": np.int32(1)}
    write(tmp_path, {"x": mu[0]}, states)
    ours, shape = "encoder/layers/block/self_attention/query/kernel", (2, 3, 4, 5)
    parts = weight_map.pieces(t5x.stacked(encoder=2, decoder=2), {ours: shape})[ours]
    adam = t5x_optimizers.find_adam(StoredArrays(tmp_path, part="state"), tensor)
    leaf = jax.ShapeDtypeStruct(shape, np.float32)
    for kind, array in {"mu": mu, "nu": nu}.items():
        found = adam.read(kind, parts, leaf)
        np.testing.assert_array_equal(found, array.transpose(1, 0, 2, 3))


def read(folder, **optimizer):
    made = run_config(loop="unroll", **optimizer)
    made.initialize, made.train.steps = str(folder), 20
    run = of_config(made)
    model = model_side.build(run)
    shapes = model.abstract_state
    return optimizer_state.read(shapes, run, shapes=shapes, axes=model.axes)


def multi_transform(params):
    """One Adam for the norms, another one for everything else."""

    def group(path, _):
        return "norms" if "norm" in str(path) else "rest"

    groups = {name: optax_in_t5x() for name in ("norms", "rest")}
    return optax.multi_transform(groups, jax.tree.map_with_path(group, params))


def of_hyperparameters(**given):
    """Adam whose state has its settings."""
    return optax.inject_hyperparams(optax.adamw)(schedule, eps=1e-6, weight_decay=0.0, **given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: optax.adafactor(0.1), "has no moment mu of"),
        (multi_transform, "has param_states/inner_states/rest/.* beside Adam's moments"),
        (
            lambda _: optax.chain(optax.scale_by_adam(), optax.trace(0.9)),
            "has param_states/1/trace/decoder/.* beside Adam's moments",
        ),
        (lambda _: optax.MultiSteps(optax_in_t5x(), 2), "acc_grads/.* beside Adam's moments"),
        (
            lambda _: optax.chain(optax.scale_by_adam(), optax.scale_by_adam()),
            "has 2 moments mu of .*: optimizer.name='adamw' continues only from a",
        ),
        (
            lambda _: optax_in_t5x(mu_dtype=jnp.bfloat16),
            r"is bfloat16, and optimizer\.first_moment='float32': set 'bfloat16'",
        ),
        (
            lambda _: of_hyperparameters(b2=0.95),
            r"b2=0\.95 of its Adam, and optimizer\.b2=0\.98",
        ),
        (
            lambda _: of_hyperparameters(b2=0.98, eps_root=1e-3),
            r"eps_root=0\.001 of its Adam, and 0 here",
        ),
    ],
)
def test_another_optimizer_of_optax_is_refused_in_a_line(params, tmp_path, make, message):
    theirs = in_t5x(params)
    write(tmp_path, theirs, state_dict(make(theirs).init(theirs)), step=0)
    with pytest.raises(ValueError, match=message) as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


def test_settings_in_the_checkpoint_that_agree(params, tmp_path):
    theirs = in_t5x(params)
    states = state_dict(of_hyperparameters(b2=0.98).init(theirs))
    assert float(states["hyperparams/b2"]) == np.float32(0.98)
    write(tmp_path, theirs, states, step=0)
    read(tmp_path)


def test_adams_count_may_be_another_and_the_schedules_not(params, tmp_path):
    """As after fine-tuning with a new Adam: the steps of the model count, those of Adam do not."""
    theirs = in_t5x(params)
    states = state_dict(optax_in_t5x().init(theirs)) | {"0/count": np.int32(2)}
    write(tmp_path / "of_schedule", theirs, states)
    with pytest.raises(ValueError, match=r"param_states/2/count is 0, and the run has 6 steps"):
        read(tmp_path / "of_schedule")
    del states["2/count"]
    write(tmp_path / "of_adam", theirs, states)
    found = read(tmp_path / "of_adam")
    counts = [
        int(leaf)
        for path, leaf in jax.tree.leaves_with_path(found.opt_state)
        if "count" in str(path)
    ]
    assert (int(found.step), sorted(counts)) == (STEP, [2, STEP])
    del states["0/count"]
    write(tmp_path / "of_none", theirs, states)
    with pytest.raises(ValueError, match="the optimizer's state has no param_states/0/count"):
        read(tmp_path / "of_none")


def test_parameters_that_are_frozen_here_need_no_moments(params, tmp_path):
    theirs = in_t5x(params)
    states = state_dict(optax_in_t5x().init(theirs))
    kept = {k: x for k, x in states.items() if "token_embedder" not in k}
    assert len(kept) == len(states) - 2
    write(tmp_path, theirs, kept, step=0)
    read(tmp_path, frozen=("token_embedder",))
    with pytest.raises(ValueError, match="has no param_states/0/mu/decoder/token_embedder"):
        read(tmp_path)


def trained_state(config):
    """The state of a run after some updates."""
    model = model_side.build(of_config(config))
    state = model.initial_state()
    update = jax.jit(model.optimizer.update)
    opt_state = state.opt_state
    for seed in range(STEP):
        _, opt_state = update(random_like(state.params, seed), opt_state, state.params)
    return model, state.replace(step=jnp.int32(STEP), opt_state=opt_state)


@pytest.mark.parametrize(
    ("clip", "constant", "loop"),
    [(0.0, False, "scan"), (0.5, False, "unroll"), (0.0, True, "scan")],
)
def test_a_run_becomes_a_checkpoint_that_t5x_restores(tmp_path, clip, constant, loop):
    rate = {"schedule": "constant", "warmup_steps": 0} if constant else {}
    config = run_config(loop=loop, **({"clip_norm": clip} if clip else {}), **rate)
    model, state = trained_state(config)
    metadata = {"config": settings.to_dict(parse(config)), "data_shards": 2}
    with Checkpoints(tmp_path / "run" / "checkpoints", metadata=metadata) as saver:
        saver.save(STEP, state)
    flags = [f"--from={tmp_path / 'run'}", f"--to={tmp_path / 'out'}", "--format=t5x_training"]
    convert.main(flags)
    folder = tmp_path / "out" / f"checkpoint_{STEP}"
    # What T5X restores, by name: the state of the optimizer of its gin file.
    theirs = in_t5x(jax.device_get(state.params))
    optimizer = optax_in_t5x(clip=clip, rate=0.01 if constant else schedule)
    expected = state_dict(optimizer.init(theirs))
    stored = StoredArrays(folder, part="state")
    assert set(stored.names) == {"step", *(f"param_states/{name}" for name in expected)}
    for name, array in expected.items():
        found = (stored.shape(f"param_states/{name}"), stored.dtype(f"param_states/{name}"))
        assert found == (array.shape, array.dtype)
    # And the run that goes on from there has the state that it had.
    config.initialize, config.initialize_optimizer = f"t5x:{folder}", True
    again = model_side.build(of_config(config)).initial_state()
    jax.tree.map(np.testing.assert_array_equal, again.opt_state, state.opt_state)
    jax.tree.map(np.testing.assert_array_equal, again.params, state.params)
    assert int(again.step) == STEP
    assert from_pretrained(tmp_path / "out").system == model.part.system


@pytest.mark.parametrize(("system", "size"), [("umt5", "small"), ("switch", "base_8")])
def test_moments_of_stacked_layers_and_of_experts_come_back(tmp_path, system, size):
    config = run_config()
    sizes = {name: MODEL[name] for name in ("vocab_size", "d_model", "d_ff", "heads", "d_kv")}
    layers = {"encoder_layers": 2, "decoder_layers": 4, "dropout": 0.0}
    config.system, config.model = system, systems.find(system).sizes[size] | sizes | layers
    model, state = trained_state(config)
    optimizer_state.write(state, tmp_path, settings=parse(config), axes=model.axes)
    folder = tmp_path / f"checkpoint_{STEP}"
    names = StoredArrays(folder).names
    moments = set(StoredArrays(folder, part="state").names)
    assert moments >= {f"param_states/0/{kind}/{name}" for kind in ("mu", "nu") for name in names}
    config.initialize, config.initialize_optimizer = f"t5x:{folder}", True
    again = model_side.build(of_config(config)).initial_state()
    jax.tree.map(np.testing.assert_array_equal, again.opt_state, state.opt_state)


def test_what_t5x_has_no_form_for_is_not_written(tmp_path):
    for optimizer, message in {
        ("name", "adamax"): "optimizer.name='adamax': only the state of adamw and adafactor",
        ("unfreeze_steps", 5): "momentum, unfreezing and schedules",
        ("frozen", ("token_embedder",)): "the run has frozen parameters",
    }.items():
        config = run_config(**dict([optimizer]))
        model = model_side.build(of_config(config))
        written = {"settings": parse(config), "axes": model.axes}
        with pytest.raises(ValueError, match=message):
            optimizer_state.write(model.abstract_state, tmp_path / "out", **written)
