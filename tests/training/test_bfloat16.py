"""Training in bfloat16: every product has bfloat16 operands, forward and backward."""

import jax.numpy as jnp
import pytest

from tests.traced_steps import products_of, training_step

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
