"""PaLM: its published sizes, its initialization, its layer by hand, its loss, its cache."""

import functools
import itertools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import palm as palm_config
from t5x_like import systems
from t5x_like.experiment.run import of_config
from t5x_like.pretrained.model import Pretrained
from t5x_like.systems import palm
from t5x_like.training import optimizers

# Table 1 has 8.63B, 62.50B and 540.35B. It leaves out the gains of the norms, which are 0.002B of
# the largest.
COUNTS = {"8b": 8_632_012_800, "62b": 62_495_662_080, "540b": 540_356_474_880}
WITHOUT_GAINS = {"8b": "8.63", "62b": "62.50", "540b": "540.35"}
TINY = palm.SIZES["8b"] | {
    "vocab_size": 512,
    "layers": 2,
    "d_model": 64,
    "d_ff": 256,
    "heads": 3,
    "head_width": 32,
}


def shapes(module):
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return jax.tree.leaves_with_path(nn.unbox(boxed)["params"])


@pytest.mark.parametrize("size", palm.SIZES)
def test_parameters_as_published(size):
    counts = {
        jax.tree_util.keystr(path): math.prod(leaf.shape)
        for path, leaf in shapes(systems.build("palm", palm.SIZES[size]))
    }
    assert sum(counts.values()) == COUNTS[size]
    matrices = sum(count for path, count in counts.items() if "scale" not in path)
    assert f"{matrices / 1e9:.2f}" == WITHOUT_GAINS[size]
    assert not any("bias" in path for path in counts)


@functools.cache
def make():
    module = systems.build("palm", TINY)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


@functools.cache
def compiled(method):
    return jax.jit(
        functools.partial(make()[0].apply, method=method), static_argnames="cache_length"
    )


def test_kernels_are_initialized_by_their_inputs_and_embeddings_from_a_unit_normal():
    _, params = make()
    block = params["decoder"]["layers"]["block"]
    attention, feed_forward = block["self_attention"], block["feed_forward"]
    for kernel, inputs in (
        (attention["query"]["kernel"], 64),
        (attention["key"]["kernel"], 64),
        (attention["value"]["kernel"], 64),
        (attention["out"]["kernel"], 3 * 32),
        (feed_forward["wi_0"]["kernel"], 64),
        (feed_forward["wi_1"]["kernel"], 64),
        (feed_forward["wo"]["kernel"], 256),
        (params["token_embedder"]["embedding"], 1),
    ):
        # The deviation of 4096 samples or more is right to 1.1%, in 4 of its own 4.4%.
        np.testing.assert_allclose(np.std(kernel), inputs**-0.5, rtol=0.045)


def test_logits_begin_near_a_unit_normal():
    batch = {"decoder_input_tokens": jnp.arange(1, 13)[None]}
    logits = compiled("__call__")({"params": make()[1]}, batch)
    # But for the token's own, which its vector gives D^0.5 / 2 and more.
    assert 0.8 < np.median(np.abs(logits)) / 0.6745 < 1.2


def test_a_layer_is_the_sum_of_what_both_parts_read_of_one_norm():
    # A text of one token attends to itself alone, so attention is value and output maps, and the
    # angle of position 0 turns nothing.
    _, params = make()
    token = 7

    def norm(x):
        x = x - x.mean()
        return x / np.sqrt(np.square(x).mean() + 1e-6)

    def swish(x):
        return x / (1 + np.exp(-x))

    embedding = np.asarray(params["token_embedder"]["embedding"], np.float64)
    x = embedding[token]
    for n in range(2):
        block = jax.tree.map(
            lambda leaf, n=n: np.asarray(leaf[n], np.float64), params["decoder"]["layers"]["block"]
        )
        attention, feed_forward = block["self_attention"], block["feed_forward"]
        y = norm(x)
        value = y @ attention["value"]["kernel"][:, 0]  # one head, which all queries share
        read = np.einsum("K,HKD->D", value, attention["out"]["kernel"])
        wi_0, wi_1 = (y @ feed_forward[name]["kernel"] for name in ("wi_0", "wi_1"))
        x = x + read + (swish(wi_0) * wi_1) @ feed_forward["wo"]["kernel"]
    expected = norm(x) @ embedding.T / 64**0.5
    batch = {"decoder_input_tokens": jnp.array([[token]])}
    found = compiled("__call__")({"params": params}, batch)[0, 0]
    # Float32 beside float64: 1e-6 of sums near 8.
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_token_changes_what_comes_after_it_alone():
    tokens = jnp.arange(1, 13)[None]
    one, two = (
        compiled("__call__")({"params": make()[1]}, {"decoder_input_tokens": each})
        for each in (tokens, tokens.at[0, 6].set(40))
    )
    changed = (np.abs(one - two).max(axis=-1) > 0)[0]
    assert changed.tolist() == [False] * 6 + [True] * 6


def test_step_by_step_over_a_cache_is_as_at_once():
    variables = {"params": make()[1]}
    tokens = jax.random.randint(jax.random.key(1), (2, 9), 1, 512)
    real = jnp.arange(6)[None] >= jnp.array([[0], [4]])  # left-padded
    step_logits, cache = compiled("prefill")(
        variables, tokens[:, :6], cache_length=9, decoder_mask=real
    )
    found = [step_logits[:, None]]
    for place in range(6, 9):
        step_logits, cache = compiled("extend")(variables, tokens[:, place : place + 1], cache)
        found.append(step_logits)
    found = np.concatenate(found, axis=1)
    for row, padding in enumerate((0, 4)):
        batch = {"decoder_input_tokens": tokens[row : row + 1, padding:]}
        expected = compiled("__call__")(variables, batch)[0, 5 - padding :]
        # Float32 sums in another order, of logits near 8.
        np.testing.assert_allclose(found[row], expected, atol=1e-4)


def test_one_head_of_keys_serves_all_queries():
    module = systems.build("palm", TINY)
    cache = module.make_decoder(parent=None).empty_cache(batch=5, slots=7)
    assert cache.own.key.shape == (2, 5, 1, 7, 32)


def test_the_loss_adds_the_square_of_the_log_of_the_normalizer():
    module, params = make()
    batch = {
        "decoder_input_tokens": jnp.array([[1, 5, 9, 4]]),
        "decoder_target_tokens": jnp.array([[5, 9, 4, 0]]),
        "decoder_loss_weights": jnp.array([[1.0, 1.0, 1.0, 0.0]]),
    }
    logits = compiled("__call__")({"params": params}, batch)
    log_z = jax.nn.logsumexp(logits, axis=-1)[0, :3]
    wanted = jnp.take_along_axis(logits, batch["decoder_target_tokens"][..., None], axis=-1)
    expected = jnp.sum(log_z - wanted[0, :3, 0] + 1e-4 * jnp.square(log_z))
    loss = jax.jit(functools.partial(palm.loss, module, z_loss=1e-4))
    total, weight, _ = loss(params, batch, None)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert weight == 3


def test_it_is_not_written_for_hugging_face(tmp_path):
    module, params = make()
    model = Pretrained(module, params, system="palm", config=TINY)
    with pytest.raises(ValueError, match="system='palm': Hugging Face has no class"):
        model.save_pretrained(tmp_path / "folder")


@pytest.mark.parametrize("size", ["demo", *palm.SIZES])
def test_the_batch_doubles(size):
    config = palm_config.get_config(size)
    (of_config(config))
    sizes = [part.data.batch_size for part in (of_config(config).phases)]
    # Once in 8B and 62B, twice in 540B (table 1).
    times = 1 if size in ("8b", "62b") else 2
    assert [two / one for one, two in itertools.pairwise(sizes)] == [2] * times
    assert (of_config(config).phases)[-1].last == config.train.steps


def test_the_learning_rate_and_the_decay_are_those_of_section_5():
    _, schedule = optimizers.build(palm_config.get_config("8b").optimizer, axes=())
    np.testing.assert_allclose([schedule(0), schedule(9_999)], 1e-2, rtol=1e-6)
    np.testing.assert_allclose(schedule(40_000), 40_000**-0.5, rtol=1e-6)
