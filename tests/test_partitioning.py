"""Layouts: the same program, the same losses, nothing replicated that should be cut."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from t5x_like import partitioning
from t5x_like.config import defaults
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.partitioning import BATCH_AXES, BatchSlice
from t5x_like.research.planning.collectives import KINDS
from t5x_like.systems.t5 import SIZES
from t5x_like.training.loop import Log, StepCost, fit

LAYOUTS = [
    {"data": 8},
    pytest.param({"data": 1, "fsdp": 8}, marks=pytest.mark.slow),
    {"data": 2, "fsdp": 2, "model": 2},
    pytest.param({"data": 1, "fsdp": 2, "model": 4}, marks=pytest.mark.slow),
    {"data": 1, "model": 2, "fsdp": 2, "expert": 2},
]
STEPS = 5


def build(mesh, *, optimizer="adafactor", microbatches=1):
    config = defaults()
    config.model = SIZES["small"] | {
        "encoder_layers": 2,
        "decoder_layers": 2,
        "d_model": 32,
        "d_ff": 48,
        "heads": 4,
        "d_kv": 8,
        "vocab_size": 128,
    }
    config.data.batch_size = 8
    config.optimizer = {"name": optimizer, "schedule": "constant", "learning_rate": 0.01}
    if optimizer == "adafactor":
        config.optimizer.min_dim_size_to_factor = 16
    config.mesh = mesh
    config.train.microbatches = microbatches
    return model_side.build(of_config(config))


def batch(step):
    rng = np.random.default_rng(step)
    return {
        "encoder_input_tokens": rng.integers(1, 128, (8, 12), np.int32),
        "decoder_input_tokens": rng.integers(1, 128, (8, 6), np.int32),
        "decoder_target_tokens": rng.integers(1, 128, (8, 6), np.int32),
        # Rows of different weight: a mean of the devices' means would be another number.
        "decoder_loss_weights": (np.arange(6)[None] < rng.integers(1, 7, (8, 1))).astype(
            np.float32
        ),
    }


@functools.cache
def trained(*mesh, microbatches=1):
    model = build(dict(mesh), microbatches=microbatches)
    state, losses = model.initial_state(), []
    with partitioning.layout(model.mesh):
        for step in range(STEPS):
            state, metrics = model.train_step(state, model.put(batch(step)))
            losses.append(float(metrics["loss"].compute()))
    return model, state, losses


@pytest.mark.parametrize("mesh", LAYOUTS, ids=str)
def test_every_layout_gives_the_same_losses(mesh):
    model, state, losses = trained(*mesh.items())
    # Float32 sums in another order, through five updates.
    np.testing.assert_allclose(losses, trained(("data", 8))[-1], rtol=1e-5)
    assert losses[-1] != losses[0]
    for leaf, sharding in zip(
        jax.tree.leaves(state), jax.tree.leaves(model.shardings), strict=True
    ):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


def test_microbatches_on_a_mesh_give_the_same_losses():
    *_, losses = trained(("data", 2), ("fsdp", 2), ("model", 2), microbatches=2)
    # Float32 sums in another order, through five updates.
    np.testing.assert_allclose(losses, trained(("data", 8))[-1], rtol=1e-5)


class Endless:
    """A batch, again and again, of a run of one task."""

    def __next__(self):
        return "", batch(0)

    def state(self):
        return None


class Silent:
    """A writer of metrics that keeps the steps."""

    def __init__(self):
        self.steps = []

    def write_scalars(self, step, scalars):
        self.steps.append(step)

    def flush(self):
        pass


def test_no_program_of_a_training_step_has_a_collective_but_the_models_own():
    model = build({"data": 2, "fsdp": 2, "model": 2})
    client, writer = jax.devices()[0].client, Silent()
    before = list(client.live_executables())
    log = Log(writer, every=2, cost={"": StepCost(tokens=1, examples=1)})
    with partitioning.layout(model.mesh):
        fit(
            model.initial_state(),
            train_steps={"": model.train_step},
            batches=Endless(),
            put=model.put,
            steps=6,
            log=log,
        )
    assert writer.steps == [2, 4, 6]
    texts = {
        module.name: module.to_string()
        for program in client.live_executables()
        if program not in before
        for module in program.hlo_modules()
    }
    assert {"jit_step", "jit__accumulate"} <= texts.keys()
    found = {name for name, text in texts.items() if any(kind in text for kind in KINDS)}
    assert found - {"jit__create"} == {"jit_step"}  # the first makes the initial state


def test_matrices_and_their_moments_are_cut_over_fsdp_and_model():
    model = build({"data": 2, "fsdp": 2, "model": 2})
    state = model.initial_state()
    for path, leaf in jax.tree.leaves_with_path(state.params):
        name = jax.tree_util.keystr(path)
        parts = 8 // (leaf.size // leaf.addressable_shards[0].data.size)
        if "scale" in name:
            assert leaf.sharding.is_fully_replicated, name
        elif "relative_position_bias" in name:
            assert parts == 4, name  # over the model's heads alone
        else:
            assert parts == 2, name  # over both, each half twice over `data`


def test_parameters_that_were_read_are_not_held_twice(monkeypatch):
    model = build({"data": 2, "fsdp": 2, "model": 2})
    read = model.initial_state().params
    expected = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))(read)
    monkeypatch.setattr(model_side.TaskProgram, "_pretrained", lambda self: read)
    model = dataclasses.replace(model, run=model.run.replace(initialize="a folder"))
    state = model.initial_state()
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(read))
    jax.tree.map(np.testing.assert_array_equal, state.params, expected)


def test_moments_lie_where_their_parameters_do():
    model = build({"data": 2, "fsdp": 2, "model": 2}, optimizer="adamw")
    state = model.initial_state()
    places = {leaf.shape: leaf.sharding for leaf in jax.tree.leaves(state.params)}
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
    assert len(moments) == 2 * len(jax.tree.leaves(state.params))
    assert all(leaf.sharding.is_equivalent_to(places[leaf.shape], leaf.ndim) for leaf in moments)


def test_a_mesh_is_checked_before_anything_is_built():
    with pytest.raises(ValueError, match=r"mesh\.modell.* data, fsdp, expert, model"):
        partitioning.make_mesh({"modell": 2})
    with pytest.raises(ValueError, match="asks for 3 devices; there are 8"):
        partitioning.make_mesh({"data": 3})
    with pytest.raises(ValueError, match="asks for a multiple of 3 devices; there are 8"):
        partitioning.make_mesh({"data": -1, "model": 3})
    with pytest.raises(ValueError, match="at most one of them is -1"):
        partitioning.make_mesh({"data": -1, "fsdp": -1})
    assert partitioning.make_mesh({"data": -1, "model": 2}).shape["data"] == 4


def test_what_a_mesh_cannot_cut_is_named():
    with pytest.raises(ValueError, match=r"model=8 does not divide kv_heads=4 of .*attention"):
        build({"data": 1, "model": 8})


def test_batches_are_cut_by_process_and_never_by_model():
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    assert partitioning.batch_sharding(mesh).spec == P(("data", "fsdp", "expert"))
    assert partitioning.batch_slice(mesh) == BatchSlice(0, 1, (0, 1, 2, 3))
    np.testing.assert_array_equal(partitioning.batch_slice(mesh).rows(6), range(6))


@dataclasses.dataclass(frozen=True)
class Device:
    """Enough of a device for `batch_slices`: an id and the process that holds it."""

    id: int
    process_index: int


def mesh_of(monkeypatch, shape, processes):
    """A mesh of {data, model}, and the process of each of its devices in order."""
    rows, parts = shape
    held = {
        Device(number, process): (slice(number // parts, number // parts + 1),)
        for number, process in enumerate(processes)
    }
    sharding = type("Sharding", (), {"devices_indices_map": lambda self, shape: held})()
    monkeypatch.setattr(partitioning, "batch_sharding", lambda mesh: sharding)
    sizes = {"data": rows, "fsdp": 1, "expert": 1, "model": parts}
    return type("Mesh", (), {"shape": sizes, "devices": np.zeros(len(processes))})()


@pytest.mark.parametrize(
    ("shape", "processes", "slices"),
    [
        ((8, 1), "00112233", {0: (0, 4), 1: (1, 4), 2: (2, 4), 3: (3, 4)}),
        ((2, 4), "00001111", {0: (0, 2), 1: (1, 2)}),
        ((1, 8), "00001111", {0: (0, 1), 1: (0, 1)}),  # all examples, half of the model each
        ((2, 4), "00112233", {0: (0, 2), 1: (0, 2), 2: (1, 2), 3: (1, 2)}),
        ((8, 1), "01233210", {0: (0, 4), 1: (1, 4), 2: (2, 4), 3: (3, 4)}),
        ((4, 2), "01233210", {0: (0, 2), 1: (0, 2), 2: (1, 2), 3: (1, 2)}),
    ],
)
def test_processes_that_share_examples_have_the_same_slice(monkeypatch, shape, processes, slices):
    mesh = mesh_of(monkeypatch, shape, list(map(int, processes)))
    found = partitioning.batch_slices(mesh)
    assert {process: (own.index, own.number) for process, own in found.items()} == slices


@pytest.mark.parametrize(
    ("shape", "processes", "message"),
    [
        ((3, 2), "000111", r"process 0 the blocks 0, 1 and process 1 the blocks 1, 2.* of 3, the"),
        ((2, 3), "001122", r"process 0 the blocks 0 and process 1 the blocks 0, 1: two processes"),
    ],
)
def test_processes_with_some_examples_in_common_are_refused(monkeypatch, shape, processes, message):
    mesh = mesh_of(monkeypatch, shape, list(map(int, processes)))
    with pytest.raises(ValueError, match=message):
        partitioning.batch_slices(mesh)


def test_a_layout_gives_names_their_meaning():
    mesh = partitioning.make_mesh({"data": 4, "model": 2})
    axes = {"kernel": P("embed", "mlp")}
    assert partitioning.shardings(mesh, axes)["kernel"].spec == P("fsdp", "model")
    with partitioning.layout(mesh):
        assert nn.logical_to_mesh_axes(("activation_batch", None))[0] == ("data", "fsdp", "expert")


@pytest.mark.parametrize(
    ("rows", "axes"), [(16, BATCH_AXES), (8, BATCH_AXES), (4, "data"), (2, "data"), (3, None)]
)
def test_a_batch_is_sharded_over_the_axes_that_divide_it(rows, axes):
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 4})

    @jax.jit
    def constrained(x):
        return partitioning.constrain(2 * x, ("activation_batch", None))

    with partitioning.layout(mesh):
        sharding = constrained(jnp.ones((rows, 3))).sharding
    assert sharding.is_equivalent_to(NamedSharding(mesh, P(axes)), 2)
