"""XLNet: its published sizes, its two streams, its memory, as PyTorch computes them."""

import functools
import json
import math
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from t5x_like import losses, partitioning, systems
from t5x_like.nn.stack import unstack_layers
from t5x_like.pretrained import from_pretrained
from t5x_like.systems import xlnet

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "xlnet.npz"
# Hugging Face's counts for `xlnet-base-cased` and `xlnet-large-cased`.
PUBLISHED = {
    ("base", "features"): 116_718_336,
    ("base", "language_modeling"): 116_750_336,
    ("large", "features"): 360_268_800,
    ("large", "language_modeling"): 360_300_800,
}
TOLERANCE = 1e-4  # as in tests/hf/test_encoder_weights.py
TINY = xlnet.SIZES["base"] | {
    "vocab_size": 40,  # ROWS * LENGTH
    "memory": 5,
    "layers": 3,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "dropout": 0.0,
}
ROWS, LENGTH, PLACES = 4, 10, 4
# Float32 sums of some tens of terms of order 1, in another order.
ROUNDING = 5e-5


@pytest.mark.parametrize(("size", "head"), PUBLISHED)
def test_parameters_as_published(size, head):
    module = systems.build("xlnet", xlnet.SIZES[size] | {"head": head})
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(boxed)))
    assert count == PUBLISHED[size, head]


@functools.cache
def arrays():
    return dict(np.load(GOLDEN))


def read(folder, **settings):
    """The golden folder of the language model, read: its network and parameters."""
    head, stored = "language_modeling", arrays()
    names = zip(stored[f"{head}/names"], stored[f"{head}/keys"], strict=True)
    tensors = {str(name): stored[f"weights/{key}"] for name, key in names}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads(str(stored[f"{head}/config.json"])) | settings
    (folder / "config.json").write_text(json.dumps(config))
    return from_pretrained(folder)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return read(tmp_path_factory.mktemp("xlnet"))


def group(prefix):
    found = arrays().items()
    return {k.removeprefix(prefix): v for k, v in found if k.startswith(prefix)}


def batch_of(frozen):
    return {
        "encoder_input_tokens": frozen["input_ids"],
        "encoder_segment_ids": frozen["attention_mask"],
        "encoder_token_types": frozen["token_type_ids"],
        "encoder_order": frozen["order"],
        "predicted_positions": frozen["places"],
    }


def test_batches_in_order_with_a_memory_are_pytorchs(published):
    module, params = published.module, {"params": published.params}
    predict = jax.jit(functools.partial(module.apply, method="predict"))
    memory = None
    for step in range(3):
        frozen = group(f"ordered/{step}/")
        batch = batch_of(frozen) | {"reused": np.full(4, 6, np.int32)}
        memory = module.first_memory(batch) if memory is None else memory
        outputs, memory = predict(params, batch | {"memory": memory})
        np.testing.assert_allclose(outputs["logits"], frozen["logits"], atol=TOLERANCE, rtol=0)
        held = frozen["memory"].shape[2]  # less than 7 after the first batch
        np.testing.assert_allclose(
            memory["hidden"][:, :, 7 - held :], frozen["memory"], atol=TOLERANCE, rtol=0
        )
        assert np.array_equal(memory["real"][0], np.arange(7) >= 7 - held)


def test_rows_that_run_backward_are_pytorchs(published):
    frozen = group("backward/")
    batch = batch_of(frozen) | {"reversed": np.array([0, 0, 1, 1], np.int32)}
    forward = jax.jit(functools.partial(losses.forward, published.module, rng=None))
    found = forward(published.params, batch)["logits"]
    np.testing.assert_allclose(found, frozen["logits"], atol=TOLERANCE, rtol=0)
    other = forward(published.params, batch | {"reversed": np.zeros(4, np.int32)})["logits"]
    np.testing.assert_allclose(found[:2], other[:2], atol=ROUNDING)
    assert np.abs(found[2:] - other[2:]).max() > 0.1


def test_distances_with_a_limit_are_pytorchs(published, tmp_path):
    frozen = group("clamped/")
    module = systems.build("xlnet", published.config | {"longest_distance": 4})
    assert read(tmp_path, clamp_len=4).config["longest_distance"] == 4
    for one, same in ((module, True), (published.module, False)):
        logits = losses.forward(one, published.params, batch_of(frozen), rng=None)["logits"]
        assert np.allclose(logits, frozen["logits"], atol=TOLERANCE, rtol=0) == same


@functools.cache
def tiny(**settings):
    """The network and parameters so large that what one of them changes is seen in float32."""
    module = systems.build("xlnet", TINY | settings)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noise = [x + 0.2 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return module, jax.tree.unflatten(structure, noise)


@functools.cache
def batch(seed=0):
    """Rows of an order with ties at the beginning, of two segments, the last row backward."""
    random = np.random.default_rng(seed)
    order = np.stack([np.maximum(random.permutation(LENGTH) - 5, 0) for _ in range(ROWS)])
    places = np.argsort(order, axis=1)[:, -PLACES:]
    weights = np.zeros((ROWS, LENGTH), np.float32)
    np.put_along_axis(weights, places, 1, axis=1)
    tokens = random.integers(4, 40, (ROWS, LENGTH), np.int32)
    return {
        "encoder_input_tokens": tokens,
        "encoder_target_tokens": tokens,
        "encoder_loss_weights": weights,
        "encoder_segment_ids": np.ones((ROWS, LENGTH), np.int32),
        "encoder_token_types": (np.arange(LENGTH) > 5).astype(np.int32) * np.ones_like(tokens),
        "encoder_order": order.astype(np.int32),
        "reversed": np.array([0, 0, 0, 1], np.int32),
        "continued": np.array([1, 1, 0, 1], np.int32),
        "reused": np.array([6, 3, 6, 6], np.int32),
    }


def last_places():
    return np.argsort(batch()["encoder_order"], axis=1)[:, -PLACES:].astype(np.int32)


def memory():
    random = np.random.default_rng(5)
    return {
        "hidden": random.standard_normal((ROWS, 3, 5, 16)).astype(np.float32),
        "real": np.ones((ROWS, 5), bool),
    }


def sensitivity(params, module, batch, *, stream):
    """Whether the output of each place changes with each token's embedding: [B, places, L]."""
    places = jnp.tile(jnp.arange(LENGTH, dtype=jnp.int32), (ROWS, 1))
    inputs = dict(batch) | ({"predicted_positions": places} if stream == "query" else {})
    # Every place has an embedding of its own, so that the gradient is of the place.
    table = params["embeddings"]["embedding"][batch["encoder_input_tokens"].reshape(-1)]
    inputs["encoder_input_tokens"] = jnp.arange(ROWS * LENGTH).reshape(ROWS, LENGTH)

    def outputs(table):
        own = {**params, "embeddings": {"embedding": table}}
        return module.apply({"params": own}, inputs)["hidden"]

    jacobian = jax.jit(jax.jacobian(lambda x: jnp.sum(outputs(x) ** 2, axis=-1)))(table)
    jacobian = jnp.abs(jacobian).sum(-1).reshape(ROWS, LENGTH, ROWS, LENGTH)
    across = jacobian.sum(-1) * (1 - jnp.eye(ROWS))[:, None, :]
    np.testing.assert_array_equal(across, 0)  # of another row
    return np.einsum("bpbl->bpl", jacobian) > 0


@pytest.mark.parametrize("stream", ["content", "query"])
def test_no_stream_sees_what_comes_later_in_the_order(stream):
    module, params = tiny(head="features", memory=0)
    rows = batch()
    found = sensitivity(params, module, rows, stream=stream)
    rank = rows["encoder_order"]
    own, others = rank[:, :, None], rank[:, None, :]
    # Exactly what may be seen is seen, through three layers.
    assert np.array_equal(found, others <= own if stream == "content" else others < own)


def test_a_query_with_nothing_to_see_does_not_see_itself():
    module, params = tiny(head="features", memory=0)
    rows = batch() | {"encoder_order": np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1))}
    found = sensitivity(params, module, rows, stream="query")
    assert not found[:, 0].any()
    assert np.array_equal(found[0], np.tri(LENGTH, k=-1, dtype=bool))


def test_a_memory_is_seen_by_all_where_a_row_goes_on_and_changes_nothing_where_not():
    module, params = tiny()
    rows = batch() | {"predicted_positions": last_places()}
    predict = jax.jit(functools.partial(module.apply, method="predict"))
    none, nothing = predict({"params": params}, rows)
    assert nothing == {}
    first = module.first_memory(rows)
    empty, _ = predict({"params": params}, rows | {"memory": first})
    np.testing.assert_allclose(empty["logits"], none["logits"], atol=ROUNDING)
    held, after = predict({"params": params}, rows | {"memory": memory()})
    changed = np.abs(held["logits"] - none["logits"]).max(axis=(1, 2))
    assert (changed > 0.01).tolist() == [True, True, False, True]
    assert changed[2] < ROUNDING
    # Five places: of the row's first 6 or 3 tokens, after what was remembered.
    assert after["real"].tolist() == [[True] * 5, [True] * 5, [True] * 5, [True] * 5]
    short = rows | {"continued": np.zeros(ROWS, np.int32)}
    _, after = predict({"params": params}, short | {"memory": memory()})
    assert after["real"].sum(axis=1).tolist() == [5, 3, 5, 5]


def test_the_memory_is_the_layers_inputs_and_has_no_gradient():
    module, params = tiny()
    rows = {k: v for k, v in batch().items() if k != "encoder_order"}
    rows = rows | {"continued": np.zeros(ROWS, np.int32)}  # so that nothing before is seen
    apply = jax.jit(functools.partial(module.apply, collect=("hidden_states",)))
    states = apply({"params": params}, rows)[1]["encoder"].hidden_states

    def remember(params):
        given = rows | {"memory": memory()}
        return module.apply({"params": params}, given, method="predict")[1]["hidden"]

    found = jax.jit(remember)(params)
    for row, reused in enumerate(rows["reused"]):
        own = jnp.concatenate([memory()["hidden"][row], states[:-1, row, :reused]], axis=1)
        np.testing.assert_allclose(found[row], own[:, -5:], atol=ROUNDING)
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(remember(params) ** 2)))(params)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))


def value_and_gradient(module, params, rows, before):
    def loss(params):
        (total, weight, _), after = xlnet.loss(
            module, params, rows, None, carry=before, predicted=0.4
        )
        return total / weight, after

    return jax.value_and_grad(loss, has_aux=True)(params)


def close(found, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=ROUNDING), found, expected
    )


@functools.cache
def expected():
    module, params = tiny()
    return jax.jit(functools.partial(value_and_gradient, module))(params, batch(), memory())


@pytest.mark.slow
def test_a_loop_that_recomputes_gives_the_scans_gradient():
    _, params = tiny()
    module = systems.build("xlnet", TINY | {"loop": "unroll", "remat": "full"})
    layers = unstack_layers(params["encoder"]["layers"], layers=3)
    looped = params | {"encoder": {"layers": layers}}
    (value, after), gradient = jax.jit(functools.partial(value_and_gradient, module))(
        looped, batch(), memory()
    )
    (scanned, scanned_after), own = expected()
    own = own | {"encoder": {"layers": unstack_layers(own["encoder"]["layers"], layers=3)}}
    close((value, after, gradient), (scanned, scanned_after, own))


def test_a_gradient_on_a_mesh_of_eight_is_that_of_one_device():
    module, params = tiny()
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    axes = nn.get_partition_spec(boxed)["params"]
    with partitioning.layout(mesh):
        spread = jax.device_put(params, partitioning.shardings(mesh, axes))
        rows, before = (partitioning.shard_batch(one, mesh) for one in (batch(), memory()))
        found = jax.jit(functools.partial(value_and_gradient, module))(spread, rows, before)
    close(found, expected())


def test_the_loss_is_of_the_places_to_predict_alone():
    (value, _), _ = expected()
    module, params = tiny()
    places = last_places()
    rows = batch() | {"predicted_positions": places, "memory": memory()}
    predict = jax.jit(functools.partial(module.apply, method="predict"))
    logits = predict({"params": params}, rows)[0]["logits"]
    targets = np.take_along_axis(rows["encoder_target_tokens"], places, axis=1)
    own = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), targets[..., None], -1)
    assert float(value) == pytest.approx(-own.mean(), rel=1e-4)


def test_a_memory_keeps_its_types_from_batch_to_batch():
    module = systems.build("xlnet", TINY | {"dtype": "bfloat16"})
    params = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())["params"]
    before = jax.eval_shape(module.first_memory, batch())
    loss = functools.partial(xlnet.loss, module, rng=None, predicted=0.4)
    (total, *_), after = jax.eval_shape(
        lambda params, rows, carry: loss(params, rows, carry=carry), params, batch(), before
    )
    assert total.dtype == jnp.float32
    assert before["hidden"].dtype == jnp.bfloat16
    assert after == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": -1}, r"model\.memory=-1 must be an integer, 0"),
        ({"head": "masked_lm"}, r"model\.head='masked_lm'.*language_modeling"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        systems.build("xlnet", TINY | settings)


def test_an_odd_width_and_a_batch_without_an_order_are_refused():
    odd = systems.build("xlnet", TINY | {"d_model": 15, "heads": 3})
    with pytest.raises(ValueError, match=r"model\.d_model=15 is odd"):
        jax.eval_shape(odd.init, jax.random.key(0), odd.example_batch())
    module, params = tiny()
    rows = {k: v for k, v in batch().items() if k != "encoder_order"}
    with pytest.raises(ValueError, match=r"set data\.objective='xlnet'"):
        xlnet.loss(module, params, rows, None, carry={})


def orders(frozen):
    """The order of a golden batch, as the arguments of Hugging Face's class."""
    rank, ranks = frozen["order"][:, :, None], frozen["order"][:, None, :]
    return {
        "perm_mask": ((ranks > rank) | ((ranks == rank) & (rank > 0))).astype(np.float32),
        "target_mapping": np.eye(rank.shape[1])[frozen["places"]],
    }


def fields(frozen):
    return {name: frozen[name] for name in ("input_ids", "attention_mask", "token_type_ids")}


def test_the_model_takes_and_returns_what_pytorchs_does(published):
    mems = None
    for step in range(3):
        frozen = group(f"ordered/{step}/")
        found = published(**fields(frozen), **orders(frozen), mems=mems, reuse_len=6)
        mems = found.mems
        np.testing.assert_allclose(found.logits, frozen["logits"], atol=TOLERANCE, rtol=0)
        theirs = frozen["memory"].transpose(1, 2, 0, 3)  # [N, M, B, D]
        assert [one.shape for one in mems] == [one.shape for one in theirs]
        np.testing.assert_allclose(np.stack(mems), theirs, atol=TOLERANCE, rtol=0)
    assert published(**fields(frozen), use_mems=False).mems is None


def test_half_of_the_rows_run_backward_with_bi_data(tmp_path):
    model = read(tmp_path, bi_data=True)
    frozen = group("backward/")
    found = model(**fields(frozen), **orders(frozen))
    np.testing.assert_allclose(found.logits, frozen["logits"], atol=TOLERANCE, rtol=0)
    with pytest.raises(ValueError, match="a batch of 3 rows: with bi_data"):
        model(frozen["input_ids"][:3])
    model.save_pretrained(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["bi_data"] is True


def test_labels_of_queries_have_a_loss(published):
    frozen = group("ordered/0/")
    labels = np.take_along_axis(frozen["input_ids"], frozen["places"], axis=1)
    labels[:, 0] = -100
    found = published(**fields(frozen), **orders(frozen), labels=labels)
    likely = jax.nn.log_softmax(frozen["logits"])[:, 1:]
    wanted = -np.mean(np.take_along_axis(likely, labels[:, 1:, None], axis=-1))
    np.testing.assert_allclose(found.loss, wanted, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"perm_masks": 0}, "no argument 'perm_masks'. Did you mean 'perm_mask'"),
        ({"perm_mask": np.zeros((4, 19))}, r"perm_mask must have shape \[4, 19, 19\]"),
        ({"perm_mask": np.full((4, 19, 19), 0.5)}, "perm_mask has the value 0.5; allowed: 0, 1"),
        ({"target_mapping": np.zeros((4, 5, 19))}, "each query must have a single 1"),
        ({"mems": [np.zeros((7, 4, 24))]}, r"needs 2 of shape \[M, 4, 24\]"),
        ({"mems": [np.zeros((7, 3, 24))] * 2}, r"needs 2 of shape \[M, 4, 24\]"),
        ({"reuse_len": 20}, "reuse_len=20: 0 to 19 allowed"),
    ],
)
def test_wrong_arguments_are_named(published, given, problem):
    with pytest.raises(ValueError, match=problem):
        published(**fields(group("ordered/0/")), **given)
