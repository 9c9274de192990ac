"""Reward models: the number of a text's last token, whatever surrounds it, on every trunk."""

import math
import pathlib

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from t5x_like import partitioning, systems
from t5x_like.config import defaults
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.losses import preferences
from t5x_like.pretrained import from_pretrained
from t5x_like.systems import gpt2, gpt3, llama, reward_model, t5

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "gpt2.npz"
VOCABULARY, LENGTH = 40, 12
TINY = {"vocab_size": VOCABULARY, "d_model": 16, "d_ff": 24, "heads": 2}
TRUNKS = {
    "gpt2": gpt2.SIZES["small"] | TINY | {"layers": 2, "positions": 24},
    "llama": llama.SIZES["7b"] | TINY | {"layers": 2, "kv_heads": 2, "head_width": 8},
    "t5": t5.SIZES["v1_0_small"] | TINY | {"encoder_layers": 2, "decoder_layers": 2, "d_kv": 8},
}


def build(trunk, **changes):
    settings = reward_model.reward_model_of(trunk, TRUNKS[trunk])
    return systems.build("reward_model", settings | changes)


def shapes(module):
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return nn.unbox(boxed)["params"]


def count(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def initial(module):
    init = jax.jit(lambda: nn.unbox(module.init(jax.random.key(0), module.example_batch())))
    return init()["params"]


def test_a_reward_model_has_the_parameters_of_its_trunk_and_one_vector():
    trunk = count(shapes(systems.build("gpt3", gpt3.SIZES["6_7b"])))
    found = shapes(systems.build("reward_model", reward_model.SIZES["6b"]))
    assert count(found) == trunk + 4096
    assert found["head"]["kernel"].shape == (4096, 1)


def test_an_output_layer_of_its_own_is_left_out():
    settings = llama.SIZES["7b"]
    whole = shapes(systems.build("llama", settings))
    found = shapes(systems.build("reward_model", reward_model.reward_model_of("llama", settings)))
    assert found["trunk"].keys() == whole.keys() - {"lm_head"}
    assert count(found) == count(whole) - 32000 * 4096 + 4096


@pytest.fixture(scope="module", params=TRUNKS)
def made(request):
    """A reward model, its parameters, and its rewards and values of a batch."""
    module = build(request.param)

    @jax.jit
    def run(params, batch):
        both = [module.apply({"params": params}, batch, method=m) for m in ("__call__", "values")]
        return tuple(both)

    return module, initial(module), run


def text(module, tokens, *, left=0, right=0):
    """A batch of one row with padding before and after its tokens."""
    row = np.pad(np.array(tokens), (left, right), constant_values=7)
    real = np.pad(np.ones(len(tokens), np.int32), (left, right))
    batch = {
        "decoder_input_tokens": row,
        "decoder_segment_ids": real,
        "decoder_positions": np.maximum(np.cumsum(real) - 1, 0),
    }
    if "encoder" in module.sides:
        batch["encoder_input_tokens"] = np.arange(1, LENGTH + 1)
    return {name: jnp.asarray(x, jnp.int32)[None] for name, x in batch.items()}


def test_the_reward_is_the_value_of_the_last_token_and_padding_changes_nothing(made):
    module, params, run = made
    tokens = [3, 14, 15, 9, 26, 5, 35]
    padded = LENGTH - len(tokens)
    rewards, values = run(params, text(module, tokens, right=padded))
    before, left_values = run(params, text(module, tokens, left=padded))
    assert rewards.dtype == values.dtype == jnp.float32
    assert rewards[0] == values[0, len(tokens) - 1]
    assert before[0] == left_values[0, -1]
    # Float32 sums of attention over other slots.
    np.testing.assert_allclose(before, rewards, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        left_values[0, padded:], values[0, : len(tokens)], rtol=1e-5, atol=1e-6
    )
    # The last token counts, and what stands in the padding does not.
    other, _ = run(params, text(module, [*tokens[:-1], 8], right=padded))
    assert abs(other[0] - rewards[0]) > 1e-3
    noise = text(module, tokens, right=padded)
    noise["decoder_input_tokens"] = noise["decoder_input_tokens"].at[0, -1].set(2)
    np.testing.assert_allclose(run(params, noise)[0], rewards, rtol=1e-6)


def test_rewards_are_float32_shifted_and_divided_for_a_trunk_in_bfloat16():
    exact = build("gpt2")
    params = initial(exact)
    batch = text(exact, [3, 1, 4, 1, 5])
    plain = exact.apply({"params": params}, batch)
    moved = build("gpt2", shift=-0.5, scale=4.0).apply({"params": params}, batch)
    np.testing.assert_allclose(moved, (plain + 0.5) / 4.0, rtol=1e-6)
    rounded = build("gpt2", dtype="bfloat16").apply({"params": params}, batch)
    assert rounded.dtype == jnp.float32
    np.testing.assert_allclose(rounded, plain, atol=0.1)  # 8 bits of states near 1


@pytest.mark.slow
@pytest.mark.parametrize("trunk", ["gpt2", "t5"])
def test_the_gradient_on_a_mesh_is_that_of_one_device(trunk):
    module = build(trunk)
    random = np.random.default_rng(0)
    tokens = random.integers(1, VOCABULARY, (8, 3, LENGTH)).astype(np.int32)
    segments = (np.arange(LENGTH) < random.integers(4, LENGTH + 1, (8, 3, 1))).astype(np.int32)
    batch = {
        "decoder_input_tokens": tokens,
        "decoder_segment_ids": segments,
        "ranks": np.tile(np.array([2, 1, 3], np.int32), (8, 1)),
    }
    if trunk == "t5":
        batch["encoder_input_tokens"] = tokens[:, 0]
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())["params"]
    params = initial(module)

    def gradient(params, batch):
        return jax.grad(lambda p: preferences.loss(module, p, batch, None)[0])(params)

    expected = jax.jit(gradient)(params, batch)
    mesh = partitioning.make_mesh({"data": 2, "fsdp": 2, "model": 2})
    with partitioning.layout(mesh):
        shardings = partitioning.shardings(mesh, nn.get_partition_spec(boxed))
        placed = partitioning.shard_batch(batch, mesh)
        found = jax.jit(gradient)(jax.device_put(params, shardings), placed)
    # Float32 sums in another order; gradients are of order 1.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), found, expected
    )


def test_a_reward_model_starts_with_the_trunk_of_a_folder(tmp_path):
    arrays = dict(np.load(GOLDEN))
    weights = {k.removeprefix("weights/"): v for k, v in arrays.items() if k.startswith("weights/")}
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(str(arrays["config.json"]))
    source = from_pretrained(tmp_path)
    config = defaults()
    config.system = "reward_model"
    config.model = reward_model.reward_model_of("gpt2", source.config)
    config.initialize = str(tmp_path)
    config.data.objective = "comparisons"
    config.optimizer = {"name": "sgd", "schedule": "constant", "learning_rate": 0.1}
    params = model_side.build(of_config(config), devices=jax.devices()[:1]).initial_state().params
    found = flax.traverse_util.flatten_dict(params["trunk"], sep="/")
    expected = flax.traverse_util.flatten_dict(source.params, sep="/")
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    width = source.config["d_model"]
    assert params["head"]["kernel"].shape == (width, 1)
    # 24 numbers of standard deviation 1 / sqrt(25): their own deviates by 15%, times four.
    assert np.std(params["head"]["kernel"]) == pytest.approx(0.2, rel=0.6)


def wrong(**changes):
    return lambda: systems.build("reward_model", reward_model.SIZES["6b"] | changes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (wrong(vocab_size=50), r"model\.vocab_size=50, and model\.trunk\.vocab_size=50257"),
        (wrong(shift=float("nan")), r"model\.shift=nan must be a number"),
        (wrong(scale=0.0), r"model\.scale=0\.0 must be above 0"),
        (
            wrong(
                vocab_size=systems.find("bert").sizes["base"]["vocab_size"],
                trunk={"system": "bert", **systems.find("bert").sizes["base"]},
            ),
            r"model\.trunk\.system='bert': a reward model is made of a decoder",
        ),
    ],
)
def test_settings_that_do_not_fit_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
