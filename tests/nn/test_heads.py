"""Several heads on one encoder: parameters, outputs, gradients, errors."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.systems import bert, roberta

TINY = {
    "vocab_size": 32,
    "positions": 12,
    "layers": 1,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "dropout": 0.0,
}
HEADS = {
    "mnli": {"head": "classification", "labels": 3},
    "stsb": {"head": "regression"},
    "tokens": {"head": "masked_lm"},
}
BATCH = {
    "encoder_input_tokens": jnp.asarray([[2, 7, 9, 3], [2, 5, 3, 0]]),
    "encoder_segment_ids": jnp.asarray([[1, 1, 1, 1], [1, 1, 1, 0]]),
}


@functools.cache
def make(system=bert, head=None):
    module = systems.build(
        system.SYSTEM.name, system.SIZES["base"] | TINY | {"head": head or HEADS}
    )
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


@functools.cache
def jitted(module):
    return jax.jit(module.apply)


@pytest.mark.parametrize("task", [None, "mnli"])
def test_initialization_makes_the_heads_of_all_tasks(task):
    module, params = make()
    module = module.clone(task=task)
    shapes = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    assert jax.tree.map(jnp.shape, nn.unbox(shapes)["params"]) == jax.tree.map(jnp.shape, params)
    assert params["head"].keys() == HEADS.keys()
    assert params["head"]["mnli"]["classifier"]["kernel"].shape == (16, 3)
    assert params["head"]["stsb"]["classifier"]["kernel"].shape == (16, 1)


def test_a_task_has_the_outputs_of_a_network_with_its_head_alone():
    module, params = make()
    alone, _ = make(head="masked_lm")
    own = params | {"head": params["head"]["tokens"]}
    expected = jitted(alone)({"params": own}, BATCH)["logits"]
    found = jitted(module.clone(task="tokens"))({"params": params}, BATCH)["logits"]
    np.testing.assert_array_equal(found, expected)


def test_without_a_task_all_heads_run():
    module, params = make()
    outputs = jitted(module)({"params": params}, BATCH)
    assert {task: one["logits"].shape for task, one in outputs.items()} == {
        "mnli": (2, 3),
        "stsb": (2, 1),
        "tokens": (2, 4, 32),
    }


def test_a_task_has_no_gradient_in_the_heads_of_the_others():
    module, params = make()

    def total(params):
        return module.clone(task="mnli").apply({"params": params}, BATCH)["logits"].sum()

    grads = jax.jit(jax.grad(total))(params)
    moved = {
        task: any(bool(np.any(np.asarray(x) != 0)) for x in jax.tree.leaves(tree))
        for task, tree in grads["head"].items()
    }
    assert moved == {"mnli": True, "stsb": False, "tokens": False}
    assert np.any(np.asarray(grads["embeddings"]["token"]["embedding"]) != 0)


def test_every_task_has_the_heads_of_its_system():
    module = systems.build("roberta", roberta.SIZES["base"] | TINY | {"head": HEADS})
    shapes = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    assert "first" in shapes["params"]["head"]["mnli"]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (
            {"mnli": {"head": "clasification"}},
            r"model\.head\.mnli\.head='clasification'.*Did you mean 'classification'",
        ),
        (
            {"mnli": {"head": "classification", "labels": 1}},
            r"model\.head\.mnli\.labels=1: the head 'classification' needs 2 or more labels",
        ),
        (
            {"mnli": {"head": "tagging", "label": 3}},
            r"setting of model\.head\.mnli='label'.*'labels'",
        ),
        ({"mnli": {"labels": 3}}, r"model\.head\.mnli lacks head"),
    ],
)
def test_a_wrong_head_is_named_with_its_task(head, message):
    with pytest.raises(ValueError, match=message):
        systems.build("bert", bert.SIZES["base"] | TINY | {"head": head})


def test_an_unknown_task_is_named_with_the_nearest():
    module, params = make()
    with pytest.raises(ValueError, match=r"task='mnly'.*'mnli'"):
        module.clone(task="mnly").apply({"params": params}, BATCH)
