"""BigBird-Pegasus: its published size, and what its decoder reads."""

import math

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5x_like import partitioning, systems
from t5x_like.losses import autoregressive
from t5x_like.systems import bigbird_pegasus

TINY = bigbird_pegasus.SIZES["large"] | {
    "vocab_size": 32,
    "positions": 32,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "block": 2,
    "random": 1,
    "dropout": 0.0,
}


def abstract(config):
    module = systems.build("bigbird_pegasus", config)
    return jax.eval_shape(module.init, jax.random.key(0), module.example_batch())["params"]


def test_parameters_as_published():
    """Hugging Face's count of BigBirdPegasusForConditionalGeneration."""
    shapes = nn.unbox(abstract(bigbird_pegasus.SIZES["large"]))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == 576_891_904


@pytest.fixture(scope="module")
def trained():
    """The network with parameters, a batch of 13 blocks, and its loss and gradient."""
    module = systems.build("bigbird_pegasus", TINY)
    params = nn.unbox(jax.jit(module.init)(jax.random.key(0), module.example_batch()))["params"]
    params = jax.tree.map(lambda x: x * 5, params)
    random = np.random.default_rng(0)
    source, target = random.integers(3, 32, (4, 25)), random.integers(3, 32, (4, 9))
    rows = {
        "encoder_input_tokens": source.astype(np.int32),
        "encoder_segment_ids": np.ones((4, 25), np.int32),
        "decoder_input_tokens": target.astype(np.int32),
        "decoder_target_tokens": np.roll(target, -1, axis=1).astype(np.int32),
        "decoder_loss_weights": np.ones((4, 9), np.float32),
        "decoder_segment_ids": np.ones((4, 9), np.int32),
    }

    def loss(params, rows):
        total, weight, _ = autoregressive.loss(module, params, rows, None)
        return total / weight

    gradient = jax.value_and_grad(loss)
    return module, params, rows, gradient, jax.jit(gradient)(params, rows)


@pytest.mark.slow
def test_a_gradient_on_a_mesh_of_eight_is_that_of_one_device(trained):
    _, params, rows, gradient, expected = trained
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    axes = nn.get_partition_spec(abstract(TINY))
    with partitioning.layout(mesh):
        spread = jax.device_put(params, partitioning.shardings(mesh, axes))
        found = jax.jit(gradient)(spread, partitioning.shard_batch(rows, mesh))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=5e-5), found, expected
    )


def test_the_decoder_reads_the_source_and_what_is_before(trained):
    module, params, rows, *_ = trained
    position = params["encoder"]["entrance"]["position"]["embedding"]
    token = params["token_embedder"]["embedding"]

    def logit(source, target):
        """A logit of the fifth target, of moved position and token embeddings."""
        own = dict(params)
        own["encoder"] = params["encoder"] | {"entrance": {"position": {"embedding": source}}}
        own["decoder"] = params["decoder"] | {"entrance": {"position": {"embedding": target}}}
        return module.apply({"params": own}, rows)[0, 4].sum()

    of_decoder = params["decoder"]["entrance"]["position"]["embedding"]
    assert token.shape == (32, 16)
    source, target = jax.jit(jax.grad(logit, argnums=(0, 1)))(position, of_decoder)
    assert (np.abs(source[:25]).max(axis=1) > 0).all()  # all blocks, by way of the global ones
    assert (np.abs(target[:5]).max(axis=1) > 0).all()
    assert not np.abs(target[5:]).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_parts": "windows"}, r"model\.attention_parts.*'window'"),
        ({"block": 0}, r"model\.block=0 must be 1 or more"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        systems.build("bigbird_pegasus", TINY | settings)
