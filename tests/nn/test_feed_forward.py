"""What the feed-forward layers keep for their backward pass."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import print_saved_residuals

from t5x_like.nn.compute import GELU
from t5x_like.nn.linear import GLU, MLP

BATCH, LENGTH, WIDTH, HIDDEN = 2, 3, 4, 5
SHAPES = (f"[{BATCH},{LENGTH},{HIDDEN}]", f"[{BATCH * LENGTH},{HIDDEN}]")


@pytest.mark.parametrize(
    ("layer", "kept"),
    # The arguments of the activation, and what is multiplied by wo.
    [(MLP, 2), (GLU, 3)],
)
@pytest.mark.parametrize("activation", [nn.gelu, GELU])
def test_the_steps_of_an_activation_are_not_kept(layer, kept, activation, capsys):
    module = layer(hidden=HIDDEN, activation=activation)
    x = jnp.ones((BATCH, LENGTH, WIDTH))
    params = nn.unbox(module.init(jax.random.key(0), x))
    # Layers in a loop keep exactly what the derivative of one layer reads.
    print_saved_residuals(module.apply, params, x)
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.split()[0].lstrip("f32") in SHAPES]) == kept


def test_gradients_are_those_of_the_plain_equation():
    module = GLU(hidden=HIDDEN, activation=nn.silu)
    x = jax.random.normal(jax.random.key(1), (BATCH, LENGTH, WIDTH))
    params = nn.unbox(module.init(jax.random.key(0), x))["params"]

    def plain(params, x):  # Shazeer 2020, equation 5
        gate, linear, out = (params[name]["kernel"] for name in ("wi_0", "wi_1", "wo"))
        return ((x @ gate) * jax.nn.sigmoid(x @ gate) * (x @ linear)) @ out

    def total(apply):
        return jax.grad(lambda params, x: jnp.sum(jnp.sin(apply(params, x))), argnums=(0, 1))

    found = total(lambda params, x: module.apply({"params": params}, x))(params, x)
    wanted = total(plain)(params, x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert jnp.allclose(a, b, rtol=1e-5, atol=1e-6)
