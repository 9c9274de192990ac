"""GPT: its published size, its causality, its heads for labelled text and their loss."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import partitioning, systems
from t5x_like.systems import gpt

TINY = gpt.SIZES["base"] | {
    "vocab_size": 61,
    "positions": 16,
    "layers": 2,
    "d_model": 24,
    "d_ff": 32,
    "heads": 3,
    "dropout": 0.0,
}
ADDED, CHOICES, LENGTH = 3, 2, 10


@functools.cache
def make(head="language_modeling", labels=3):
    added = 0 if head == "language_modeling" else ADDED
    module = systems.build("gpt", TINY | {"head": head, "labels": labels, "added_tokens": added})
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    params = jax.device_get(init(jax.random.key(0)))
    # Wider, so that what is read of one token is not as good as nothing beside rounding.
    return module, jax.tree.map(lambda x: x * 5 if x.ndim > 1 else x, params)


@functools.cache
def jitted(module, method="__call__"):
    return jax.jit(functools.partial(module.apply, method=method), static_argnames="cache_length")


def labelled(sizes, labels):
    """A batch of random tokens in rows of these sizes [B, C]."""
    sizes, random = np.array(sizes), np.random.default_rng(0)
    real = np.arange(LENGTH) < sizes[..., None]
    tokens = random.integers(1, TINY["vocab_size"] + ADDED, real.shape)
    return {
        "decoder_input_tokens": np.where(real, tokens, 0),
        "decoder_segment_ids": real.astype(np.int32),
        "label": np.array(labels),
    }


def test_parameters_as_published():
    module = systems.build("gpt", gpt.SIZES["base"])
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    leaves = jax.tree.leaves(nn.unbox(boxed)["params"])
    # Of `openai-community/openai-gpt`; the paper does not count.
    assert sum(math.prod(leaf.shape) for leaf in leaves) == 116_534_784


def test_a_token_changes_what_comes_after_it_alone():
    module, params = make()

    def of_place(vectors, place):
        table = params["token_embedder"] | {"embedding": vectors}
        batch = {"decoder_input_tokens": np.arange(1, 9)[None]}
        logits = module.apply({"params": params | {"token_embedder": table}}, batch)
        return jnp.sum(logits[0, place, :1])  # of token 0, which the text does not hold

    gradient = jax.jit(jax.grad(of_place), static_argnums=1)(
        params["token_embedder"]["embedding"], 4
    )
    reached = np.abs(np.asarray(gradient)).max(axis=1)[1:9] > 0
    assert reached.tolist() == [True] * 5 + [False] * 3


def test_cached_steps_have_the_logits_of_a_whole_text_beside_padding_on_the_left():
    module, params = make()
    tokens = np.random.default_rng(1).integers(1, 61, (2, 9))
    variables = {"params": params}
    for padding in (0, 3):
        text = {"decoder_input_tokens": tokens[:, padding:]}
        whole = np.asarray(jitted(module)(variables, text))
        mask = np.arange(5) >= padding
        step_logits, cache = jitted(module, "prefill")(
            variables,
            np.where(mask, tokens[:, :5], 0),
            decoder_mask=np.tile(mask, (2, 1)),
            cache_length=9,
        )
        steps = [step_logits]
        for place in range(5, 9):
            token = tokens[:, place : place + 1]
            step_logits, cache = jitted(module, "extend")(variables, token, cache)
            steps.append(np.asarray(step_logits)[:, 0])
        # Sums of the same terms in another order.
        np.testing.assert_allclose(np.stack(steps, 1), whole[:, 4 - padding :], atol=1e-5)


def test_added_tokens_are_more_rows_of_the_one_table():
    _, params = make("classification")
    assert params["token_embedder"]["embedding"].shape == (61 + ADDED, 24)


def test_a_class_is_read_off_the_last_token_of_each_row_and_rows_add_up():
    module, params = make("classification")
    both = labelled([[4, 7], [10, 1], [5, 0]], [0, 0, 0])
    found = np.asarray(jitted(module)({"params": params}, both)["label_logits"])
    bias = params["head"]["classifier"]["bias"]
    alone = []
    for row in range(2):
        one = {name: both[name][:, row : row + 1] for name in list(both)[:2]}
        alone.append(np.asarray(jitted(module)({"params": params}, one)["label_logits"]) - bias)
    np.testing.assert_allclose(found[:2], (alone[0] + alone[1] + bias)[:2], atol=1e-5)
    np.testing.assert_allclose(found[2], alone[0][2] + bias, atol=1e-5)  # its second row is padding
    # Tokens after the last one change nothing.
    tokens = both["decoder_input_tokens"]
    other = both | {"decoder_input_tokens": np.where(both["decoder_segment_ids"], tokens, 9)}
    again = jitted(module)({"params": params}, other)["label_logits"]
    np.testing.assert_array_equal(again, found)


def test_choices_compete_and_padding_is_none():
    module, params = make("multiple_choice")
    batch = labelled([[4, 7, 5], [3, 6, 0]], [1, 0])
    logits = np.asarray(jitted(module)({"params": params}, batch)["label_logits"])
    assert logits.shape == (2, 3)
    turned = {name: batch[name][:, ::-1] for name in list(batch)[:2]}
    np.testing.assert_allclose(
        jitted(module)({"params": params}, turned)["label_logits"], logits[:, ::-1], atol=1e-6
    )
    assert jax.nn.softmax(logits)[1, 2] == 0


@pytest.mark.parametrize("head", ["classification", "multiple_choice"])
def test_the_loss_is_that_of_the_labels_and_half_that_of_the_texts(head):
    module, params = make(head)
    batch = labelled([[4, 7], [10, 3], [0, 0]], [1, 0, 0])
    loss = functools.partial(systems.find("gpt").task({"head": head}).loss, module)
    total, weight, metrics = jax.jit(loss)(params, batch, None)
    outputs = jitted(module)({"params": params}, batch)
    log_labels = np.asarray(jax.nn.log_softmax(outputs["label_logits"]))
    log_tokens = np.asarray(jax.nn.log_softmax(outputs["logits"]))
    tokens, sizes = np.asarray(batch["decoder_input_tokens"]), [[4, 7], [10, 3]]
    expected = text = 0.0
    for example, label in enumerate([1, 0]):  # the third is padding
        expected -= log_labels[example, label]
        for row, size in enumerate(sizes[example]):
            each = [
                log_tokens[example, row, n, tokens[example, row, n + 1]] for n in range(size - 1)
            ]
            text -= np.mean(each) / 2
    np.testing.assert_allclose(total, expected + 0.5 * text, rtol=1e-5)
    assert weight == 2
    np.testing.assert_allclose(metrics["language_modeling"][0], text, rtol=1e-5)
    np.testing.assert_allclose(metrics["cross_entropy"][0], expected, rtol=1e-5)
    labels_alone = functools.partial(gpt.fine_tuning_loss, module, auxiliary=0.0)
    without = jax.jit(labels_alone)(params, batch, None)[0]
    np.testing.assert_allclose(without, expected, rtol=1e-5)


def test_errors_name_what_a_head_lacks():
    with pytest.raises(ValueError, match=r"model.head='multiple_choise'.*multiple_choice"):
        systems.build("gpt", TINY | {"head": "multiple_choise"})
    with pytest.raises(ValueError, match=r"model.labels=1: the head 'classification' needs 2"):
        systems.build("gpt", TINY | {"head": "classification", "labels": 1})
    with pytest.raises(ValueError, match=r"head='classification': Hugging Face's GPT"):
        systems.hugging_face_format("gpt").to_config(gpt.SIZES["base"] | {"head": "classification"})


@pytest.mark.slow
@pytest.mark.parametrize("head", ["classification", "multiple_choice"])
def test_eight_devices_compute_the_loss_and_gradient_of_one(head):
    config = TINY | {"head": head, "added_tokens": 3, "heads": 2, "vocab_size": 61}
    module = systems.build("gpt", config)

    def init(key):
        return module.init(key, module.example_batch())["params"]

    params = jax.jit(lambda key: nn.unbox(init(key)))(jax.random.key(0))

    def value_and_gradient(params, batch):
        return jax.value_and_grad(lambda p: gpt.fine_tuning_loss(module, p, batch, None)[0])(params)

    batch = labelled([[4, 7], [10, 3], [5, 5], [9, 2]], [1, 0, 1, 1])
    expected = jax.jit(value_and_gradient)(params, batch)
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    axes = nn.get_partition_spec(jax.eval_shape(init, jax.random.key(0)))
    with partitioning.layout(mesh):
        spread = jax.device_put(params, partitioning.shardings(mesh, axes))
        rows = partitioning.shard_batch(jax.device_get(batch), mesh)
        found = jax.jit(value_and_gradient)(spread, rows)
    # Float32 sums of some tens of terms of order 1, in another order.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), found, expected
    )
