"""Training in bfloat16: products have bfloat16 operands, and sums over many rows float32 ones."""

import jax.numpy as jnp
import pytest

from tests.traced_steps import equations_of, products_of, training_step

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


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_what_is_summed_one_by_one_is_float32(name):
    step = training_step(name)
    # The gradients of embeddings: T5 looks up those of both sides.
    scatters = [one for one in equations_of(step) if one.primitive.name == "scatter-add"]
    assert len(scatters) == {"t5": 2, "llama": 1}[name]
    # The output layer: logits, and the gradients of its two operands.
    names = [(one, str(one.source_info.name_stack)) for one in products_of(step)]
    head = [one for one, name in names if "BLV" in name or "ND,NV" in name]
    assert len(head) == 3
    assert {str(out.aval.dtype) for one in (*scatters, *head) for out in one.outvars} == {"float32"}
    # New parameters, the optimizer's state and the metrics.
    dtypes = {out.aval.dtype for out in step.outvars}
    assert {str(dtype) for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)} == {"float32"}
