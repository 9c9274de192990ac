"""GPT-3: the sizes of its table, which layers see how far, its initialization, its cache."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import systems
from t5x_like.systems import gpt3

# By shape, from the rows of table 2.1, and in billions its first column.
COUNTS = {
    "small": (125_226_240, 0.125),
    "medium": (355_871_744, 0.350),
    "large": (760_300_032, 0.760),
    "xl": (1_517_123_584, 1.3),
    "2_7b": (2_651_553_280, 2.7),
    "6_7b": (6_658_404_352, 6.7),
    "13b": (12_936_488_380, 13.0),
    "175b": (174_604_259_328, 175.0),
}
WINDOW = 3
TINY = gpt3.SIZES["small"] | {
    "vocab_size": 61,
    "positions": 32,
    "layers": 4,
    "d_model": 24,
    "d_ff": 32,
    "heads": 3,
    "head_width": 10,
    "window": WINDOW,
}


@functools.cache
def make(**changes):
    module = systems.build("gpt3", TINY | changes)
    init = jax.jit(lambda key: nn.unbox(module.init(key, module.example_batch()))["params"])
    return module, init(jax.random.key(0))


@pytest.mark.parametrize("size", gpt3.SIZES)
def test_parameters_by_shape(size):
    module = systems.build("gpt3", gpt3.SIZES[size])
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(boxed)["params"]))
    assert count == COUNTS[size][0]
    if size != "xl":  # whose 24 heads of 128 make more: docs/systems/gpt3.md
        assert count / 1e9 == pytest.approx(COUNTS[size][1], rel=0.02)


def test_every_second_layer_sees_a_band_alone():
    def reached(layers):
        """Which tokens the last of 12 depends on, in a model with these layers' attention."""
        module, params = make(layers=2)

        def last(table):
            own = params | {"token_embedder": {"embedding": table}}
            # A layer whose output is nothing leaves the other.
            block = dict(own["decoder"]["layers"]["block"])
            for name in {"block_0", "block_1"} - set(layers):
                attention = block[name]["self_attention"]
                nothing = jax.tree.map(jnp.zeros_like, attention["out"])
                block[name] = block[name] | {"self_attention": attention | {"out": nothing}}
            own = own | {"decoder": own["decoder"] | {"layers": {"block": block}}}
            batch = {"decoder_input_tokens": jnp.arange(1, 13)[None]}
            return jnp.sum(module.apply({"params": own}, batch)[0, -1, :1])

        gradient = jax.jit(jax.grad(last))(params["token_embedder"]["embedding"])
        return (np.abs(np.asarray(gradient)).max(axis=1)[1:13] > 0).tolist()

    assert reached(["block_1"]) == [False] * (12 - WINDOW) + [True] * WINDOW
    assert reached(["block_0"]) == [True] * 12


def test_a_token_changes_what_comes_after_it_alone():
    module, params = make()
    tokens = jnp.arange(1, 13)[None]
    apply = jax.jit(lambda p, t: module.apply({"params": p}, {"decoder_input_tokens": t}))
    changed = np.abs(apply(params, tokens) - apply(params, tokens.at[0, 6].set(40))).max(axis=-1)
    assert (changed > 0)[0].tolist() == [False] * 6 + [True] * 6


def test_a_band_that_holds_the_whole_text_is_dense():
    module, params = make()
    wide = systems.build("gpt3", TINY | {"window": 32})
    tokens = {"decoder_input_tokens": jnp.arange(1, 13)[None]}
    narrow_logits, wide_logits = (
        jax.jit(lambda p, t, m=m: m.apply({"params": p}, t))(params, tokens) for m in (module, wide)
    )
    same = np.abs(narrow_logits - wide_logits).max(axis=-1)[0] < 1e-6  # sums in another order
    assert same.tolist() == [True] * WINDOW + [False] * (12 - WINDOW)


@pytest.mark.parametrize("loop", ["scan", pytest.param("unroll", marks=pytest.mark.slow)])
def test_cached_steps_have_the_logits_of_a_whole_text_beside_padding_on_the_left(loop):
    module, params = make(loop=loop)
    tokens = np.random.default_rng(1).integers(1, 61, (2, 14))
    mask = np.array([[True] * 6, [False] * 2 + [True] * 4])
    variables = {"params": params}
    prefill = jax.jit(functools.partial(module.apply, cache_length=14, method="prefill"))
    extend = jax.jit(functools.partial(module.apply, method="extend"))
    step_logits, cache = prefill(variables, np.where(mask, tokens[:, :6], 0), decoder_mask=mask)
    steps = [step_logits]
    for place in range(6, 14):
        step_logits, cache = extend(variables, tokens[:, place : place + 1], cache)
        steps.append(step_logits[:, 0])
    for row, padding in enumerate((0, 2)):
        text = {"decoder_input_tokens": tokens[row : row + 1, padding:]}
        whole = jax.jit(module.apply)(variables, text)[0]
        found = np.stack(steps, 1)[row]
        # Sums of the same terms in another order.
        np.testing.assert_allclose(found, whole[5 - padding :], atol=1e-5)


def test_outputs_of_sublayers_are_initialized_smaller_by_the_root_of_2n():
    _, params = make(layers=8, d_model=48)
    for block in params["decoder"]["layers"]["block"].values():
        np.testing.assert_allclose(np.std(block["feed_forward"]["wi"]["kernel"]), 0.02, rtol=0.1)
        for part, name in (("self_attention", "out"), ("feed_forward", "wo")):
            np.testing.assert_allclose(np.std(block[part][name]["kernel"]), 0.005, rtol=0.1)


def test_layers_that_do_not_alternate_are_refused():
    for wrong in ({"layers": 3}, {"window": 0}):
        with pytest.raises(
            ValueError, match=r"model.layers=.* must be even, and model.window=.* 1 or more"
        ):
            systems.build("gpt3", TINY | wrong)
