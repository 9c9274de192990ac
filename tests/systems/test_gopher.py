"""Gopher: its published sizes, its initialization, its cache, layouts, bfloat16 compute."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import gopher as gopher_config
from t5x_like import partitioning, systems
from t5x_like.config import defaults
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.pretrained.model import Pretrained
from t5x_like.systems import gopher

# Table 1 names the sizes by them, rounded: the embeddings once, and with the kernel of distances,
# which each layer has (which vectors are counted as well: test_chinchilla.py).
COUNTS = {
    "44m": 43_700_736,
    "117m": 116_709_120,
    "417m": 417_443_328,
    "1.4b": 1_374_799_872,
    "7.1b": 7_112_101_888,
    "280b": 279_714_217_984,
}
TINY = gopher.SIZES["44m"] | {
    "vocab_size": 64,
    "layers": 8,
    "d_model": 16,
    "d_ff": 64,
    "heads": 2,
    "head_width": 8,
}


@pytest.mark.parametrize("size", gopher.SIZES)
def test_parameters_as_published(size):
    module = systems.build("gopher", gopher.SIZES[size])
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    leaves = jax.tree.leaves(nn.unbox(boxed)["params"])
    count = sum(math.prod(leaf.shape) for leaf in leaves)
    assert count == COUNTS[size]
    rounded = (f"{count / 1e6:.0f}m", f"{count / 1e9:.1f}b", f"{count / 1e9:.0f}b")
    assert size in rounded


@pytest.mark.parametrize("size", gopher.SIZES)
def test_every_size_is_trained_on_300_billion_tokens(size):
    settings = gopher_config.get_config(size)
    (of_config(settings))
    tokens = sum(
        phase.data.batch_size * 2048 * (phase.last - phase.first)
        for phase in (of_config(settings).phases)
    )
    assert tokens == pytest.approx(300e9, rel=1e-4)
    assert settings.optimizer.decay_steps == settings.train.steps


@functools.cache
def make():
    module = systems.build("gopher", TINY)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


def test_outputs_of_sublayers_are_initialized_smaller_by_the_root_of_2n():
    _, params = make()
    block = params["decoder"]["layers"]["block"]
    attention, feed_forward = block["self_attention"], block["feed_forward"]
    for kernel in (
        attention["query"]["kernel"],
        attention["distance_kernel"],
        feed_forward["wi"]["kernel"],
    ):
        np.testing.assert_allclose(np.std(kernel), 0.02, rtol=0.1)
    for kernel in (attention["out"]["kernel"], feed_forward["wo"]["kernel"]):
        np.testing.assert_allclose(np.std(kernel), 0.02 / 4, rtol=0.1)


def test_a_token_changes_what_comes_after_it_alone():
    module, params = make()
    apply = jax.jit(lambda params, tokens: module.apply(params, {"decoder_input_tokens": tokens}))
    tokens = jnp.arange(1, 13)[None]
    one, two = (apply({"params": params}, each) for each in (tokens, tokens.at[0, 6].set(40)))
    changed = (np.abs(one - two).max(axis=-1) > 0)[0]
    assert changed.tolist() == [False] * 6 + [True] * 6


def test_prompts_of_any_length_go_on_as_without_a_cache():
    module, params = make()
    model = Pretrained(module, params, system="gopher", config=TINY)
    read = jax.jit(lambda params, tokens: module.apply(params, {"decoder_input_tokens": tokens}))
    prompts = [[5, 9, 33, 12, 7], [20, 3]]
    rows = np.array([[0] * (5 - len(prompt)) + prompt for prompt in prompts])
    out = model.generate(rows, rows != 0, max_new_tokens=3)
    for row, prompt in zip(out, prompts, strict=True):
        for token in row[5:]:
            assert token == np.argmax(read({"params": params}, np.array([prompt]))[0, -1])
            prompt.append(token)


def test_there_is_no_folder_of_hugging_face_to_write(tmp_path):
    module, params = make()
    with pytest.raises(ValueError, match=r"system='gopher': Hugging Face has no class"):
        Pretrained(module, params, system="gopher", config=TINY).save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def train(mesh, *, dtype="float32", optimizer="sgd", steps=3):
    """The losses of some steps on the same tokens, and the state after them."""
    config = defaults()
    config.system = "gopher"
    config.model = TINY | {"layers": 2, "dtype": dtype}
    config.data.batch_size = 8
    rate = {"sgd": 1.0, "adamw": 0.01}[optimizer]
    config.optimizer = {"name": optimizer, "schedule": "constant", "learning_rate": rate}
    config.mesh = mesh
    model = model_side.build(of_config(config))
    tokens = np.random.default_rng(0).integers(1, 64, (8, 9), np.int32)
    batch = {
        "decoder_input_tokens": tokens[:, :-1],
        "decoder_target_tokens": tokens[:, 1:],
        "decoder_loss_weights": np.ones((8, 8), np.float32),
    }
    state, losses = model.initial_state(), []
    with partitioning.layout(model.mesh):
        for _ in range(steps):
            state, metrics = model.train_step(state, model.put(batch))
            losses.append(float(metrics["loss"].compute()))
    return losses, state


@pytest.mark.slow
def test_a_mesh_cut_three_ways_gives_the_same_losses():
    # By SGD, since Adam hides a gradient that is wrong by a factor.
    losses, _ = train({"data": 8})
    # Float32 sums in another order, through three updates.
    np.testing.assert_allclose(train({"data": 2, "fsdp": 2, "model": 2})[0], losses, rtol=1e-5)
    assert losses[-1] < losses[0] - 0.01


def test_bfloat16_is_for_what_is_computed_and_float32_for_what_is_kept():
    losses, state = train({"data": 8}, dtype="bfloat16", optimizer="adamw", steps=10)
    kept = {x.dtype for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)}
    assert kept == {jnp.dtype("float32")}
    exact, _ = train({"data": 8}, optimizer="adamw", steps=10)
    # Vectors of 8 bits are wrong by some 0.3%, and so are logits of order 1; a loss is a mean.
    np.testing.assert_allclose(losses, exact, atol=1e-2)
    assert losses != exact
    assert losses[-1] < losses[0] - 0.5
