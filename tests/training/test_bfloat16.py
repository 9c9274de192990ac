"""Training in bfloat16: every product has bfloat16 operands, forward and backward."""

import importlib

import jax
import jax.numpy as jnp
import pytest

from t5x_like import config
from t5x_like.experiment import model_side
from t5x_like.planning import batches, report

PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated")


def products_of(jaxpr):
    """Every product of a program and of the programs inside it."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in PRODUCTS:
            yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if _is_program(inner):
                yield from products_of(getattr(inner, "jaxpr", inner))


def _is_program(x):
    return hasattr(x, "eqns") or hasattr(getattr(x, "jaxpr", None), "eqns")


def training_step(name):
    """The program of the training step of a system's demo in bfloat16."""
    settings = importlib.import_module(f"configs.{name}").get_config("demo")
    settings.model.dtype = "bfloat16"
    settings.mesh = report.ONE_DEVICE
    config.check(settings)
    step = batches.largest(settings)
    model = model_side.build_tasks(step.config, devices=jax.devices()[:1])[step.task]
    return jax.make_jaxpr(model.train_step)(model.abstract_state_on(step.batch), step.batch).jaxpr


# Parts that are float32 for every model.dtype, by their papers or because they cost nothing.
EXACT = {
    "switch": ("router",),
    "bert": ("head/row",),  # two logits of a row
}


SLOWER = [pytest.param(name, marks=pytest.mark.slow) for name in ("switch", "xlnet", "deberta")]


@pytest.mark.parametrize("name", ["t5", "bert", "llama", "elmo", *SLOWER])
def test_no_product_of_a_training_step_has_a_float32_operand(name):
    found = list(products_of(training_step(name)))
    assert len(found) > 20
    slow = [
        f"{equation.source_info.name_stack}: {[v.aval.str_short() for v in equation.invars]}"
        for equation in found
        if any(variable.aval.dtype == jnp.float32 for variable in equation.invars)
        and not any(part in str(equation.source_info.name_stack) for part in EXACT.get(name, ()))
    ]
    assert slow == []
