"""MT-DNN: its sizes, the shared pooler, its heads, its loss of rankings, its BERT folders."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import losses, partitioning, systems
from t5x_like.pretrained import Pretrained, from_pretrained
from t5x_like.systems import bert, mt_dnn

TINY = {"vocab_size": 32, "positions": 12, "layers": 1, "d_model": 16, "d_ff": 24, "heads": 2}
TASKS = {
    "topic": {"head": "classification", "labels": 3},
    "likeness": {"head": "regression"},
    "pairs": {"head": "pair_classification", "labels": 4},
    "answers": {"head": "ranking"},
}


def count(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("size", "shared"), [("base", 109_482_240), ("large", 335_141_888)])
def test_parameters_are_those_of_bert_and_of_the_heads(size, shared):
    module = systems.build("mt_dnn", mt_dnn.SIZES[size] | {"head": TASKS})
    tree = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())["params"]
    heads, d = tree["head"], mt_dnn.SIZES[size]["d_model"]
    one = d + 1
    answer_network = d + d * d + (6 * d * d + 6 * d) + (4 * d * 4 + 4)
    expected = {"topic": 3 * one, "likeness": one, "pairs": answer_network, "answers": one}
    assert {task: count(heads[task]) for task in TASKS} == expected
    assert count(tree) - sum(expected.values()) == shared


@functools.cache
def make(head="tasks", **changes):
    settings = mt_dnn.SIZES["base"] | TINY | changes
    module = systems.build("mt_dnn", settings | {"head": TASKS if head == "tasks" else head})
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


def batch(rows=8, length=9, choices=None):
    random = np.random.default_rng(0)
    shape = (rows, length) if choices is None else (rows, choices, length)
    real = np.arange(length) < random.integers(6, length + 1, shape[:-1])[..., None]
    types = (np.arange(length) > 3) & real
    return {
        "encoder_input_tokens": jnp.asarray(random.integers(5, 32, shape) * real),
        "encoder_token_types": jnp.asarray(types, jnp.int32),
        "encoder_segment_ids": jnp.asarray(real, jnp.int32),
        "label": jnp.asarray(random.integers(0, 3, rows)),
    }


@functools.cache
def outputs(task, head="tasks"):
    module, params = make(head)
    module = module.clone(task=task) if head == "tasks" else module
    rows = batch(choices=3) if task == "answers" else batch()
    return jax.jit(lambda p: losses.forward(module, p, rows, None))(params)


def test_the_pooler_is_shared_and_tasks_read_its_output():
    """The heads of a run of several tasks give what a network with one of them does."""
    _, params = make()
    for task, head in (("topic", "classification"), ("answers", "ranking")):
        alone, _ = make(head, labels=3)
        own = {**params, "head": {"summary": params["head"]["summary"], **params["head"][task]}}
        rows = batch(choices=3) if task == "answers" else batch()
        found = jax.jit(lambda p, m=alone, r=rows: losses.forward(m, p, r, None))(own)
        np.testing.assert_allclose(found["logits"], outputs(task)["logits"], rtol=1e-6)


def test_relevance_is_from_0_to_1_and_its_loss_a_softmax_over_the_candidates():
    module, params = make()
    rows = batch(choices=3)
    segments = rows["encoder_segment_ids"].at[0, 2].set(0)  # a question with two candidates
    rows = {**rows, "encoder_segment_ids": segments, "label": rows["label"].at[0].set(1)}

    @functools.partial(jax.jit, static_argnames="gamma")
    def loss(params, gamma):
        return mt_dnn.ranking_loss(module.clone(task="answers"), params, rows, None, gamma=gamma)

    found = jax.jit(lambda p: losses.forward(module.clone(task="answers"), p, rows, None))(params)
    relevance = np.asarray(found["logits"], np.float64)
    assert relevance[0, 2] == -1e9
    real = relevance[relevance > -1e9]
    assert len(real) == 23
    assert ((real > 0) & (real < 1)).all()
    for gamma in (1.0, 7.0):
        weights = np.exp(gamma * relevance)
        chosen = weights[np.arange(8), np.asarray(rows["label"])] / weights.sum(axis=1)
        total, weight, metrics = loss(params, gamma=gamma)
        np.testing.assert_allclose(total, -np.log(chosen).sum(), rtol=1e-5)
        assert (weight, metrics["accuracy"][1]) == (8, 8)


def test_the_loss_of_a_pair_is_of_the_mean_of_the_probabilities():
    module, params = make(answer_steps=3)
    _, one = make(answer_steps=1)
    assert "unit" not in one["head"]["pairs"]
    total, _, _ = jax.jit(
        lambda p: losses.fine_tuning.loss(
            "classification", module.clone(task="pairs"), p, batch(), None
        )
    )(params)
    found = jax.jit(lambda p: losses.forward(module.clone(task="pairs"), p, batch(), None))(params)
    probabilities = np.exp(np.asarray(found["logits"], np.float64))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    expected = -np.log(probabilities[np.arange(8), np.asarray(batch()["label"])]).sum()
    np.testing.assert_allclose(total, expected, rtol=1e-5)


@pytest.mark.slow
def test_eight_devices_give_the_gradients_of_one():
    module, params = make()
    shapes = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())["params"]
    axes = nn.get_partition_spec(shapes)

    def total(params, pairs, answers):
        heads = {"pairs": pairs, "answers": answers}
        found = [losses.forward(module.clone(task=t), params, b, None) for t, b in heads.items()]
        return sum(jnp.sum(jnp.sin(3 * one["logits"])) for one in found)

    gradient = jax.grad(total)
    expected = jax.jit(gradient)(params, batch(), batch(choices=4))
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "expert": 1, "model": 2})
    with partitioning.layout(mesh):
        sharded = jax.device_put(params, partitioning.shardings(mesh, axes))
        rows = [partitioning.shard_batch(one, mesh) for one in (batch(), batch(choices=4))]
        found = jax.jit(gradient)(sharded, *rows)
    kernel = sharded["head"]["pairs"]["unit"]["input"]["kernel"]
    assert kernel.sharding.shard_shape(kernel.shape) == (8, 3, 8)
    # Float32 sums in another order.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, found, expected)


def test_the_rate_of_dropout_is_that_of_the_head():
    _, params = make()
    dropped = {**TASKS, "topic": TASKS["topic"] | {"dropout": 0.9}}
    other = systems.build("mt_dnn", mt_dnn.SIZES["base"] | TINY | {"dropout": 0.0, "head": dropped})
    rngs = {"dropout": jax.random.key(0)}

    @functools.partial(jax.jit, static_argnames="task")
    def drawn(params, task):
        return other.clone(task=task).apply(
            {"params": params}, batch(), deterministic=False, rngs=rngs
        )["logits"]

    assert not np.allclose(drawn(params, task="topic"), outputs("topic")["logits"], rtol=1e-3)
    np.testing.assert_allclose(drawn(params, "likeness"), outputs("likeness")["logits"], rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answer_steps": 0}, "model.answer_steps=0 must be 1 or more steps"),
        ({"head": {"summary": {"head": "regression"}}}, "tasks has the name 'summary'"),
        ({"head": "ranks"}, "model.head='ranks' does not exist. Did you mean 'ranking'"),
        (
            {"head": {"a": {"head": "pair_classification", "labels": 1}}},
            r"model.head.a.labels=1: the head 'pair_classification' needs 2 or more labels",
        ),
        (
            {"head": {"a": {"head": "regression", "dropout": 1.5}}},
            r"model.head.a.dropout=1.5 must be a number from 0 to below 1",
        ),
        (
            {"head": {"a": {"head": "question_answering", "dropout": 0.1}}},
            r"model.head.a.dropout=0.1: this head has no dropout",
        ),
    ],
)
def test_wrong_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        systems.build("mt_dnn", mt_dnn.SIZES["base"] | TINY | changes)


def test_the_shared_encoder_is_a_folder_of_bert(tmp_path):
    settings = bert.SIZES["base"] | TINY | {"head": "features"}
    module = systems.build("bert", settings)
    params = jax.jit(lambda: nn.unbox(module.init(jax.random.key(1), module.example_batch())))()
    folder = tmp_path / "bert"
    Pretrained(module, params["params"], system="bert", config=settings).save_pretrained(folder)
    read = from_pretrained(folder, system="mt_dnn", head=TASKS)
    np.testing.assert_array_equal(
        read.params["head"]["summary"]["dense"]["kernel"],
        params["params"]["head"]["summary"]["dense"]["kernel"],
    )
    shared = from_pretrained(folder, system="mt_dnn")
    shared.save_pretrained(tmp_path / "again")
    same = from_pretrained(tmp_path / "again")
    assert (same.system, same.config["head"]) == ("bert", "features")
    jax.tree.map(np.testing.assert_array_equal, same.params, params["params"])
    with pytest.raises(ValueError, match="'pair_classification': Hugging Face has no such head"):
        from_pretrained(folder, system="mt_dnn", head="pair_classification").save_pretrained(
            tmp_path / "pairs"
        )
