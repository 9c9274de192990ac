"""The generator: unrolled layers generate what the stack does, with the parameters of now."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.decoding import generation, generator, transposed_kernels
from t5x_like.decoding.generator import Generator
from t5x_like.nn.linear import TRANSPOSED
from t5x_like.pretrained.model import Pretrained

TINY = {
    "gpt2": {"vocab_size": 50, "positions": 20, "layers": 3, "d_model": 16, "d_ff": 20, "heads": 2},
    "t5": {
        "vocab_size": 50,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "d_model": 16,
        "d_ff": 20,
        "heads": 2,
        "d_kv": 4,
    },
    "llama": {
        "vocab_size": 50,
        "layers": 3,
        "d_model": 16,
        "d_ff": 20,
        "heads": 4,
        "kv_heads": 2,
    },
}


def make(system, **changes):
    config = next(iter(systems.find(system).sizes.values())) | TINY[system] | changes
    module = systems.build(system, config)
    params = jax.jit(lambda: nn.unbox(module.init(jax.random.key(0), module.example_batch())))()
    # Large enough that the generated tokens depend on every layer.
    params = jax.tree.map(lambda x: 3 * x, params["params"])
    return Pretrained(module, params, system=system, config=config)


def greedy(model, prompt, *, new):
    """The likeliest next tokens, by the whole network once for each."""
    encodes = model.module.sides == ("encoder", "decoder")
    own = jnp.zeros((len(prompt), 1), jnp.int32) if encodes else prompt
    apply = jax.jit(lambda params, batch: model.module.apply({"params": params}, batch))
    first = own.shape[1]
    own = jnp.pad(own, ((0, 0), (0, new)))  # none sees what is yet to come
    for place in range(first, first + new):
        batch = {"encoder_input_tokens": prompt} if encodes else {}
        logits = apply(model.params, {**batch, "decoder_input_tokens": own})
        own = own.at[:, place].set(jnp.argmax(logits[:, place - 1], -1))
    return own


@pytest.mark.slow
@pytest.mark.parametrize("system", TINY)
def test_unrolled_layers_generate_what_the_scanned_stack_predicts(system):
    model = make(system)
    prompt = jnp.asarray(np.random.default_rng(0).integers(2, 50, (2, 5)))
    settings = {"max_new_tokens": 4, "eos_token_id": None}
    found = model.generate(prompt, np.ones((2, 5)), **settings)
    np.testing.assert_array_equal(found, greedy(model, prompt, new=4))
    # With other parameters the tokens are theirs.
    head = model.params["token_embedder"]["embedding"]
    model.params["token_embedder"]["embedding"] = head[::-1]
    other = model.generate(prompt, np.ones((2, 5)), **settings)
    np.testing.assert_array_equal(other, greedy(model, prompt, new=4))
    assert not np.array_equal(found, other)


@pytest.mark.parametrize(
    ("system", "changes", "kernels"),
    [
        # Of a layer's self-attention 4, of its feed-forward layer 2.
        ("gpt2", {}, 3 * 6),
        # Of its cross-attention 2, since keys and values are in the cache; and the output layer.
        ("t5", {"tied_head": False, "loop": "unroll"}, 3 * 8 + 1),
        pytest.param(
            "t5", {"feed_forward": "gated_gelu", "tied_head": True}, 3 * 9, marks=pytest.mark.slow
        ),
        ("llama", {}, 3 * 7 + 1),
        # 8-bit products have kernels of their own.
        pytest.param("llama", {"quantization": "int8"}, 1, marks=pytest.mark.slow),
    ],
)
def test_a_large_decoder_on_a_cpu_has_transposed_kernels(system, changes, kernels, monkeypatch):
    model = make(system, **changes)
    prompt = np.random.default_rng(0).integers(2, 50, (2, 5))
    settings = {"max_new_tokens": 4, "eos_token_id": None}
    expected = model.generate(prompt, np.ones((2, 5)), **settings)
    assert not model.generator._variables.get(TRANSPOSED)
    monkeypatch.setattr(transposed_kernels, "_LEAST", 0)
    large = make(system, **changes)
    np.testing.assert_array_equal(large.generate(prompt, np.ones((2, 5)), **settings), expected)
    variables = large.generator._variables
    assert len(jax.tree.leaves(variables[TRANSPOSED])) == kernels
    # None is there twice, and what stays as it is is not copied.
    embedding = large.params["token_embedder"]["embedding"]
    assert variables["params"]["token_embedder"]["embedding"] is embedding
    count = sum(x.size for x in jax.tree.leaves(model.params))
    assert sum(x.size for x in jax.tree.leaves(variables)) == count


@pytest.mark.parametrize("system", ["gpt2", "t5"])
def test_prompts_of_other_lengths_find_compiled_code_and_padding_changes_no_token(
    system, monkeypatch
):
    layers = {"gpt2": {"layers": 1}, "t5": {"encoder_layers": 1, "decoder_layers": 1}}
    model = make(system, **layers[system])
    random = np.random.default_rng(0)
    prompts = [random.integers(2, 5, (2, length)) for length in (3, 7)]
    masks = [np.ones((2, 3)), np.ones((2, 7))]
    if system == "gpt2":
        masks[1][1, :4] = 0

    def generate():
        settings = {"max_new_tokens": 4, "eos_token_id": None, "no_repeat_ngram_size": 2}
        pairs = zip(prompts, masks, strict=True)
        return [model.generate(prompt, mask, **settings) for prompt, mask in pairs]

    before = generation._run._cache_size()
    found = generate()
    assert model.generator._prefill._cache_size() == 1
    assert generation._run._cache_size() == before + 1
    monkeypatch.setattr(generator, "padded_length", lambda length: length)
    for tokens, unpadded in zip(found, generate(), strict=True):
        np.testing.assert_array_equal(tokens, unpadded)
    assert model.generator._prefill._cache_size() == 3


def test_the_lengths_of_padded_prompts():
    lengths = {1: 16, 16: 16, 17: 32, 256: 256, 257: 512, 700: 768, 1024: 1024}
    assert {length: generator.padded_length(length) for length in lengths} == lengths


@pytest.mark.parametrize(("system", "length"), [("bart", 5), ("bart", 12), ("gpt2", 17)])
def test_padding_stays_within_the_positions_of_the_network(system, length):
    sizes = {**TINY["gpt2"], "encoder_layers": 1, "decoder_layers": 1, "positions": 20}
    config = next(iter(systems.find(system).sizes.values()))
    config = config | {name: value for name, value in sizes.items() if name in config}
    made = generator.Generator(systems.build(system, config), {})
    assert length + made._padding(length) == (16 if length < 16 else 20)


def test_attention_that_follows_the_length_of_rows_gets_no_padding():
    config = next(iter(systems.find("bigbird_pegasus").sizes.values()))
    made = generator.Generator(systems.build("bigbird_pegasus", config), {})
    assert made._padding(5) == 0


@pytest.mark.parametrize("system", TINY)
def test_a_cache_beyond_the_memory_is_refused_before_it_is_made(system):
    # 10^9 slots of 2 or 3 layers with keys and values, float32: terabytes, or 10^7 rows of 20.
    for settings in ({"max_new_tokens": 10**9}, {"max_new_tokens": 20, "num_beams": 10**8}):
        with pytest.raises(
            ValueError, match=r"max_new_tokens=.*(num_beams=.* need .* GB|positions)"
        ):
            make(system).generate(np.full((2, 3), 7), **settings)


def test_a_network_that_cannot_generate_is_refused():
    config = next(iter(systems.find("bert").sizes.values()))
    with pytest.raises(ValueError, match="the network Encoder does not generate text"):
        Generator(systems.build("bert", config), {})


def test_a_forced_token_follows_only_a_single_token():
    model = make("gpt2")
    settings = {"max_new_tokens": 3, "forced_bos_token_id": 7, "eos_token_id": None}
    after_one = model.generate(np.array([[3]]), **settings)
    assert after_one[0, 1] == 7
    prompt = np.array([[3, 9, 4]])  # transformers forces nothing here
    np.testing.assert_array_equal(
        model.generate(prompt, **settings),
        model.generate(prompt, **{**settings, "forced_bos_token_id": None}),
    )
