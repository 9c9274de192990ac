"""Training with 8-bit products: which products are, and that it learns the same parameters."""

import functools
import types
from collections import Counter

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import t5 as t5_config
from t5x_like import systems
from t5x_like.config import parse
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.research.planning import batches, chips, compiling
from t5x_like.research.planning.products import Products
from t5x_like.systems import llama, t5
from tests.traced_steps import products_of, training_step

DEMO_VOCABULARY = 4096  # tokens of the demos' vocabularies
E4M3, E5M2, INT8, BF16 = "float8_e4m3fn", "float8_e5m2", "int8", "bfloat16"
# Of each kernel: the output, the gradient of the rows and the gradient of the kernel.
TYPES = {
    "int8": [(INT8, INT8), (INT8, INT8), (BF16, BF16)],
    "fp8": [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)],
}


@pytest.mark.parametrize(("name", "kind"), [("t5", "int8"), ("llama", "int8"), ("llama", "fp8")])
def test_all_projections_of_a_training_step_have_8_bit_operands(name, kind):
    projections, others = Counter(), Counter()
    for equation in products_of(training_step(name, quantization=kind)):
        operands = tuple(str(variable.aval.dtype) for variable in equation.invars)
        # Products of two matrices are those of projections, and the gradient of the output layer's
        # kernel, in which alone the vocabulary is.
        shapes = [variable.aval.shape for variable in equation.invars]
        matrices = all(len(shape) == 2 and DEMO_VOCABULARY not in shape for shape in shapes)
        (projections if matrices else others)[operands] += 1
    kernels = sum(projections.values()) // 3
    assert kernels >= 7  # those of a layer of LLaMA
    assert projections == Counter(TYPES[kind] * kernels)
    assert others.keys() == {(BF16, BF16)}  # attention itself, and the output layer


@pytest.mark.parametrize(("system", "size"), [(t5, "small"), (llama, "7b")])
def test_parameters_are_those_of_exact_products(system, size):
    def shapes(kind):
        module = systems.build(system.SYSTEM.name, system.SIZES[size] | {"quantization": kind})
        return jax.eval_shape(module.init, jax.random.key(0), module.example_batch())["params"]

    assert shapes("none") == shapes("int8") == shapes("fp8")


def test_what_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"model.quantization='int4' does not exist.*'int8'"):
        systems.build("llama", llama.SIZES["7b"] | {"quantization": "int4"})
    for name in ("bert", "switch", "mixtral"):
        sizes = next(iter(systems.find(name).sizes.values()))
        with pytest.raises(ValueError, match=f"model.quantization is not a setting of {name}"):
            systems.build(name, {**sizes, "quantization": "int8"})


VOCABULARY, STEPS, BATCH = 32, 150, (16, 32)


@functools.cache
def texts():
    """Batches [STEPS, B, T + 1] of a language whose next token depends on the last one."""
    rng = np.random.default_rng(0)
    cumulated = np.cumsum(rng.dirichlet(np.full(VOCABULARY, 0.1), size=VOCABULARY), axis=1)
    tokens = [rng.integers(VOCABULARY, size=STEPS * BATCH[0])]
    for _ in range(BATCH[1]):
        following = (rng.random(STEPS * BATCH[0])[:, None] > cumulated[tokens[-1]]).sum(axis=1)
        tokens.append(np.minimum(following, VOCABULARY - 1))
    return jnp.asarray(np.stack(tokens, axis=1).reshape(STEPS, BATCH[0], -1))


@functools.cache
def losses(kind):
    """The loss of a token at each step of training a small LLaMA."""
    small = {"vocab_size": VOCABULARY, "layers": 1, "d_model": 32, "d_ff": 64}
    heads = {"heads": 2, "kv_heads": 2, "head_width": 16}
    module = systems.build("llama", llama.SIZES["7b"] | small | heads | {"quantization": kind})
    params = nn.unbox(module.init(jax.random.key(0), module.example_batch()))["params"]
    optimizer = optax.adam(1e-2)

    def step(state, tokens):
        batch = {
            "decoder_input_tokens": tokens[:, :-1],
            "decoder_target_tokens": tokens[:, 1:],
            "decoder_loss_weights": jnp.ones(BATCH),
        }
        value, gradient = jax.value_and_grad(
            lambda params: llama.loss(module, params, batch, None)[0] / tokens[:, 1:].size
        )(state[0])
        updates, moments = optimizer.update(gradient, state[1])
        return (optax.apply_updates(state[0], updates), moments), value

    train = jax.jit(functools.partial(jax.lax.scan, step))
    return np.asarray(train((params, optimizer.init(params)), texts())[1])


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_it_learns_what_exact_products_learn(kind):
    exact, found = losses("none"), losses(kind)
    assert exact[:5].mean() - exact[-20:].mean() > 1.0
    # A twentieth of what is learned at least; a gradient that is lost costs more.
    assert abs(found[-20:].mean() - exact[-20:].mean()) < 0.05


def test_a_bound_of_a_step_has_the_peak_of_int8():
    device = types.SimpleNamespace(device_kind="TPU v5 lite")
    work = {"memory_bytes": 0, "collectives": []}

    def compute(topology, int8):
        found = {"bf16": Products(1, 30 - int8), "s8": Products(1, int8)}
        compiled = types.SimpleNamespace(products=found, **work)
        return compiling.step_bounds(compiled, chips.topology(topology), device)["compute"]

    assert compute("v5e:2x2", 20) == pytest.approx(compute("v5e:2x2", 0) * (10 + 20 / 2) / 30)
    assert compute("v4:2x2x1", 20) == compute("v4:2x2x1", 0)


@pytest.mark.slow
def test_libtpu_compiles_a_training_step_with_it():
    settings = t5_config.get_config("base")
    settings.model.update({"encoder_layers": 2, "decoder_layers": 2, "vocab_size": 1000})
    settings.model.update({"quantization": "int8", "dtype": "bfloat16", "remat": "full"})
    settings.data.update({"batch_size": 4, "lengths": {"inputs": 128, "targets": 128}})
    settings.mesh = {"data": 2, "fsdp": 1, "expert": 1, "model": 2}
    model = model_side.build(of_config(settings), devices=chips.topology("v5e:2x2").devices())
    update = compiling.compile_step(model, batches.batch(parse(settings).data))["update"]
    # Two of the three products of a kernel, and the forward pass that remat repeats.
    assert 0.5 < update.products["s8"].flops / update.flops < 0.75
