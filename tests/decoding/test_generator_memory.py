"""The copy of the parameters that generates: one at a time, none afterwards, compiled once."""

import gc

import flax.linen as nn
import jax
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.decoding.generator import Generator, stacks
from t5x_like.nn.networks import Decoder
from t5x_like.pretrained.model import Pretrained

# Nearly all parameters are those of the layers, and far more than a cache.
SIZE = {"vocab_size": 20, "positions": 12, "layers": 3, "d_model": 64, "d_ff": 256, "heads": 2}
PROMPT = np.array([[3, 4, 5]])


def live_bytes():
    """The bytes of the arrays on the devices."""
    gc.collect()
    return sum(x.nbytes for x in jax.live_arrays())


@pytest.fixture
def model():
    config = systems.find("gpt2").sizes["small"] | SIZE
    module = systems.build("gpt2", config)
    return Pretrained(module, None, system="gpt2", config=config)


def trained(module, seed):
    init = jax.jit(lambda: nn.unbox(module.init(jax.random.key(seed), module.example_batch())))
    return init()["params"]


def measure(model, params):
    """Generate as a measure while training does: -> the live bytes meanwhile, and the tokens."""
    seen = []

    def look(step):
        del step
        seen.append(live_bytes())

    model.params = params
    settings = {"max_new_tokens": 3, "eos_token_id": None}
    tokens = np.asarray(model.stream(PROMPT, callback=look, **settings).tokens)
    model.free()
    return max(seen), tokens


def test_a_measure_has_one_copy_of_the_layers_and_leaves_none(model, monkeypatch):
    traces = []

    def counted(name):
        own = getattr(Decoder, name)

        def call(self, *arguments, **keywords):
            traces.append(name)
            return own(self, *arguments, **keywords)

        return call

    for name in ("prefill", "extend"):
        monkeypatch.setattr(Decoder, name, counted(name))
    first, second = trained(model.module, 0), trained(model.module, 1)
    before = live_bytes()
    copied = sum(x.nbytes for x in jax.tree.leaves(stacks(first)))
    assert copied > 0.9 * sum(x.nbytes for x in jax.tree.leaves(first))
    room = 0.2 * copied  # the cache, logits and constants
    tokens = []
    for number, params in enumerate((first, second, first)):
        during, found = measure(model, params)
        tokens.append(found.tolist())
        assert during - before == pytest.approx(copied, abs=room)
        assert live_bytes() - before < room
        if not number:
            compiled = list(traces)
    assert traces == compiled  # nothing is traced again for other parameters
    assert tokens[0] == tokens[2]
    monkeypatch.undo()
    other = Generator(model.module, second)
    logits, _ = other.prefill({"decoder_input_tokens": PROMPT}, cache_length=6)
    assert int(np.argmax(logits)) == tokens[1][0][0]


def test_a_generator_with_other_parameters_does_not_hold_the_first(model):
    first = trained(model.module, 0)
    generator = Generator(model.module, first)
    generator.prefill({"decoder_input_tokens": PROMPT}, cache_length=6)
    second = trained(model.module, 1)
    before = live_bytes()
    size = sum(x.nbytes for x in jax.tree.leaves(first))
    generator = generator.with_params(second)
    del first
    # The parameters of before and the copy of them are gone, and a copy of the new is there.
    assert live_bytes() - before == pytest.approx(-size, abs=0.2 * size)
