"""LLaMA: its published sizes, causality, packing, cache, windows, Hugging Face's settings."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import llama as llama_config
from t5x_like import systems
from t5x_like.experiment.run import of_config
from t5x_like.systems import llama
from t5x_like.systems.llama import HUGGING_FACE
from t5x_like.training import optimizers

# Of the released checkpoints; table 2 has 6.7B, 13.0B, 32.5B and 65.2B.
PUBLISHED = {
    "7b": 6_738_415_616,
    "13b": 13_015_864_320,
    "33b": 32_528_943_616,
    "65b": 65_285_660_672,
    "2_7b": 6_738_415_616,
    "2_70b": 68_976_648_192,
    "3_8b": 8_030_261_248,
    "3_70b": 70_553_706_496,
    "mistral_7b": 7_241_732_096,
}
# Of the released checkpoints of the families that have LLaMA's network with other parts.
FAMILIES = ("qwen2", "gemma", "mixtral")
OF_FAMILIES = {
    ("qwen2", "0_5b"): 494_032_768,
    ("qwen2", "1_5b"): 1_543_714_304,
    ("qwen2", "7b"): 7_615_616_512,
    ("qwen2", "72b"): 72_706_203_648,
    ("gemma", "2b"): 2_506_172_416,
    ("gemma", "7b"): 8_537_680_896,
    ("mixtral", "8x7b"): 46_702_792_704,
    ("mixtral", "8x22b"): 140_620_634_112,
}
TINY = llama.SIZES["7b"] | {
    "vocab_size": 64,
    "layers": 2,
    "d_model": 16,
    "d_ff": 40,
    "heads": 4,
    "kv_heads": 2,
    "head_width": 6,
}
LENGTH = 12


def parameters(module):
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(boxed)["params"]))


@pytest.mark.parametrize("size", llama.SIZES)
def test_parameters_as_published(size):
    assert parameters(systems.build("llama", llama.SIZES[size])) == PUBLISHED[size]


def test_parameters_of_the_families_as_published():
    sizes = {(name, size) for name in FAMILIES for size in systems.find(name).sizes}
    assert sizes == OF_FAMILIES.keys()
    for (name, size), published in OF_FAMILIES.items():
        module = systems.build(name, systems.find(name).sizes[size])
        assert parameters(module) == published, (name, size)


@functools.cache
def make(window=0):
    module = systems.build("llama", TINY | {"window": window})
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    # Weights so large that every token shows in what comes after it.
    return module, jax.tree.map(
        lambda x: 8 * x if x.ndim > 2 else x, jax.device_get(init(jax.random.key(0)))
    )


@functools.cache
def compiled(window, method):
    return jax.jit(
        functools.partial(make(window)[0].apply, method=method), static_argnames="cache_length"
    )


def logits(batch, *, window=0):
    return np.asarray(compiled(window, "__call__")({"params": make(window)[1]}, batch))


def tokens(rows=1):
    return jax.random.randint(jax.random.key(1), (rows, LENGTH), 1, 64)


@pytest.mark.parametrize(("window", "seen"), [(0, LENGTH), (3, 5)])
def test_a_token_changes_what_comes_after_it_as_far_as_the_layers_see(window, seen):
    # Two layers with a window of 3 see 2 x 2 tokens back.
    one = tokens()
    two = one.at[0, 4].set(one[0, 4] % 63 + 1)
    before, after = (logits({"decoder_input_tokens": each}, window=window) for each in (one, two))
    changed = np.abs(before - after).max(axis=-1)[0] > 0
    assert changed.tolist() == [4 <= place < 4 + seen for place in range(LENGTH)]


def test_order_is_seen_though_no_position_is_added():
    one = tokens()
    two = one.at[0, :4].set(one[0, 3::-1])
    before, after = (logits({"decoder_input_tokens": each})[0, -1] for each in (one, two))
    assert np.abs(before - after).max() > 1e-3


def test_packed_texts_are_as_apart():
    one = tokens()
    segments = jnp.array([[1] * 5 + [2] * 7])
    positions = jnp.concatenate([jnp.arange(5), jnp.arange(7)])[None]
    packed = logits(
        {
            "decoder_input_tokens": one,
            "decoder_segment_ids": segments,
            "decoder_positions": positions,
        }
    )
    for part in (slice(0, 5), slice(5, LENGTH)):
        alone = logits({"decoder_input_tokens": one[:, part]})
        # Float32 sums of other lengths.
        np.testing.assert_allclose(packed[:, part], alone, atol=1e-5)


@pytest.mark.parametrize("window", [0, 3])
def test_step_by_step_over_a_cache_is_as_at_once(window):
    variables, one, prompt = {"params": make(window)[1]}, tokens(2), 7
    real = jnp.arange(prompt)[None] >= jnp.array([[0], [4]])  # left-padded
    step_logits, cache = compiled(window, "prefill")(
        variables, one[:, :prompt], cache_length=LENGTH, decoder_mask=real
    )
    found = [step_logits[:, None]]
    for place in range(prompt, LENGTH):
        one_more = one[:, place : place + 1]
        step_logits, cache = compiled(window, "extend")(variables, one_more, cache)
        found.append(step_logits)
    found = np.concatenate(found, axis=1)
    for row, padding in enumerate((0, 4)):
        expected = logits({"decoder_input_tokens": one[row : row + 1, padding:]}, window=window)
        # Float32 sums in another order.
        np.testing.assert_allclose(found[row], expected[0, prompt - 1 - padding :], atol=1e-5)


def hf(**changes):
    return HUGGING_FACE.to_config(TINY) | changes


def test_settings_come_back_from_those_of_hugging_face():
    scaling = {"rope_type": "linear", "factor": 2.0}
    for changes in (
        {},
        {"window": 5},
        {"rope_scaling": scaling, "rope_theta": 5e5},
        {"tied_head": True, "norm_epsilon": 1e-5},
        {"bos_id": 128_000, "eos_id": [128_001, 128_009]},
    ):
        settings = TINY | changes
        assert HUGGING_FACE.from_config(HUGGING_FACE.to_config(settings), names=()) == settings


def test_a_text_ends_with_the_token_in_the_settings():
    assert llama.SIZES["3_8b"][llama.SYSTEM.generation["eos_token_id"]] == 128_001


def test_settings_of_older_folders():
    old = hf(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    for name in ("rope_parameters", "head_dim", "num_key_value_heads", "tie_word_embeddings"):
        del old[name]
    settings = HUGGING_FACE.from_config(old, names=())
    assert settings["rope_theta"] == 5e5
    assert settings["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert (settings["kv_heads"], settings["head_width"], settings["tied_head"]) == (4, 4, False)


def test_a_mistral_may_have_no_window():
    sliding = {"model_type": "mistral", "sliding_window": None}
    assert HUGGING_FACE.from_config(hf(**sliding), names=())["window"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias=True; allowed: False"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'; allowed: 'silu'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' does not exist"),
    ],
)
def test_what_this_llama_does_not_have(changes, message):
    with pytest.raises(ValueError, match=message):
        HUGGING_FACE.from_config(hf(**changes), names=())


def test_a_setting_that_is_missing():
    with pytest.raises(ValueError, match=r"has no rms_norm_eps"):
        HUGGING_FACE.from_config({k: v for k, v in hf().items() if k != "rms_norm_eps"}, names=())


@pytest.mark.parametrize("size", ["demo", "7b", "13b", "33b", "65b"])
def test_the_configs_are_valid_and_end_at_a_tenth_of_the_rate(size):
    config = llama_config.get_config(size)
    (of_config(config))
    _, schedule = optimizers.build(config.optimizer, axes=())
    peak = max(float(schedule(step)) for step in range(0, 3000, 100))
    np.testing.assert_allclose(peak, config.optimizer.learning_rate, rtol=1e-3)
    np.testing.assert_allclose(schedule(config.train.steps), peak / 10, rtol=1e-3)


def test_batches_and_tokens_are_those_of_table_2():
    config = llama_config.get_config("65b")
    batch = config.data.batch_size * config.data.lengths.targets
    assert batch == 4 * 2**20
    np.testing.assert_allclose(config.train.steps * batch, 1.4e12, rtol=1e-5)
