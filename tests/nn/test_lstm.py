"""LSTMs against PyTorch's, rows that hold several documents, and heads over a BiLSTM."""

import functools
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5x_like import partitioning, systems
from t5x_like.nn.lstm import BiLSTM, ProjectedLSTM
from t5x_like.systems import bert

GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "lstm.npz"))
CELL = 7
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 1e-5
GATES = [0, 2, 1, 3]  # PyTorch's order is i, f, g, o


def layer(name, number, *, directions):
    """The parameters of a layer of torch.nn.LSTM as ours; its two biases are added."""

    def stacked(part):
        ends = ("", "_reverse")[:directions]
        arrays = [GOLDEN[f"{name}/{part}_l{number}{end}"] for end in ends]
        return np.stack([x.reshape(4, CELL, *x.shape[1:])[GATES] for x in arrays])

    return {
        "input": np.moveaxis(stacked("weight_ih"), 3, 1),
        "recurrent": np.moveaxis(stacked("weight_hh"), 3, 1),
        "bias": stacked("bias_ih") + stacked("bias_hh"),
    }


def real_tokens():
    return np.arange(GOLDEN["both/x"].shape[1]) < GOLDEN["lengths"][:, None]


def test_both_directions_are_pytorch_s():
    params = {f"layer_{n}": layer("both", n, directions=2) for n in range(2)}
    module = BiLSTM(layers=2, cell=CELL)
    out = jax.jit(module.apply)({"params": params}, GOLDEN["both/x"], real_tokens())
    np.testing.assert_allclose(out, GOLDEN["both/out"], atol=ROUNDING)


@functools.cache
def one_direction():
    module = ProjectedLSTM(cell=CELL, features=None)
    return jax.jit(module.apply)


def test_one_direction_is_pytorch_s():
    x = GOLDEN["one/x"][None]
    for number in range(2):
        params = layer("one", number, directions=1)
        x, _ = one_direction()({"params": params}, x, real_tokens()[None])
    np.testing.assert_allclose(x[0], GOLDEN["one/out"], atol=ROUNDING)


def test_a_document_that_begins_in_a_row_is_read_by_itself():
    params = {"params": layer("one", 0, directions=1)}
    x, real = GOLDEN["one/x"][None], np.ones((1, 2, 9), bool)
    begins = np.zeros_like(real)
    begins[:, :, 4] = True
    whole, _ = one_direction()(params, x, real, begins=begins)
    alone, _ = one_direction()(params, x[:, :, 4:], real[:, :, 4:])
    np.testing.assert_allclose(whole[:, :, 4:], alone, atol=ROUNDING)


TINY = bert.SIZES["base"] | {
    "vocab_size": 32,
    "positions": 12,
    "layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "dropout": 0.0,
    "lstm_layers": 2,
    "lstm_width": CELL,
}


@pytest.mark.parametrize(
    ("head", "output"),
    [("classification", "logits"), ("tagging", "logits"), ("question_answering", "start_logits")],
)
def test_a_head_reads_the_lstm_over_the_encoder(head, output):
    module = systems.build("bert", TINY | {"head": head, "labels": 3})
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    tokens = np.random.default_rng(0).integers(4, 32, (2, 9))
    batch = {
        "encoder_input_tokens": tokens,
        "encoder_segment_ids": real_tokens().astype(np.int32),
    }
    out, collected = module.apply({"params": params}, batch, collect=("hidden_states",))
    states = collected["encoder"].hidden_states[-1]
    lstm = BiLSTM(layers=2, cell=CELL)
    states = lstm.apply({"params": params["head"]["lstm"]}, states, real_tokens())
    over = params["head"]["over"]
    if head == "classification":
        dense = over["summary"]["dense"]
        states = np.tanh(states[:, 0] @ dense["kernel"] + dense["bias"])
    last = over[{"question_answering": "answer", "tagging": "tagger"}.get(head, "classifier")]
    expected = states @ last["kernel"] + last["bias"]
    expected = expected[..., 0] if output == "start_logits" else expected
    np.testing.assert_allclose(out[output], expected, atol=ROUNDING)


def test_a_gradient_on_a_mesh_of_eight_is_that_of_one_device():
    settings = {"head": "tagging", "labels": 4, "lstm_width": 8}
    module = systems.build("bert", TINY | settings)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    rows = {
        "encoder_input_tokens": np.random.default_rng(0).integers(4, 32, (4, 9)),
        "encoder_segment_ids": np.tile(real_tokens().astype(np.int32), (2, 1)),
    }

    @jax.jit
    def gradient(params, rows):
        def squared(params):
            return (module.apply({"params": params}, rows)["logits"] ** 2).sum()

        return jax.value_and_grad(squared)(params)

    expected = gradient(params, rows)
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    with partitioning.layout(mesh):
        axes = nn.get_partition_spec(boxed)["params"]
        spread = jax.device_put(params, partitioning.shardings(mesh, axes))
        found = gradient(spread, partitioning.shard_batch(rows, mesh))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)  # sums in another order


def test_every_task_of_a_run_has_its_lstm():
    heads = {name: {"head": name, "labels": 3, "dropout": 0.2} for name in ("tagging",)}
    heads["answers"] = {"head": "question_answering"}
    module = systems.build("bert", TINY | {"head": heads})
    shapes = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())["params"]
    assert shapes["head"].keys() == heads.keys()
    assert all(part.keys() == {"lstm", "over"} for part in shapes["head"].values())


@pytest.mark.parametrize("head", ["masked_lm", "pretraining", "features"])
def test_a_head_that_reads_the_encoder_itself_has_no_lstm(head):
    with pytest.raises(ValueError, match=rf"model\.lstm_layers=2: the head '{head}' reads"):
        systems.build("bert", TINY | {"head": head})
