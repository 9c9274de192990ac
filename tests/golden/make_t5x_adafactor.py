"""Freezes steps of T5X's Adafactor on its T5 networks: t5x_adafactor.npz.

git clone https://github.com/google-research/t5x
JAX_PLATFORMS=cpu python tests/golden/make_t5x_adafactor.py t5x    (made with T5X of October 2026)

T5X's own network (examples/t5 with separate layers, examples/scalable_t5 with stacked layers) has
its own logical axes, by which its own Adafactor factors the moments, with the rules of its gin
files. For each network the file has, by T5X's names, what the optimizer has after STEP steps, and
after one step and two steps more; and the gradients of these two.
"""

import importlib
import pathlib
import sys
import types
from unittest import mock

import flax.core
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax.contrib  # noqa: F401  (T5X expects it to be imported)
from flax.linen.partitioning import get_axis_names

STEP = 6
SIZES = {"vocab_size": 24, "emb_dim": 8, "num_heads": 2, "head_dim": 4, "mlp_dim": 12}
SIZES |= {"num_encoder_layers": 2, "num_decoder_layers": 1, "dropout_rate": 0.0}
SIZES |= {"mlp_activations": ("gelu", "linear")}
NETWORKS = {"t5": "t5x.examples.t5.network", "umt5": "t5x.examples.scalable_t5.network"}


def import_t5x(clone):
    """Lets T5X's modules be imported without the packages that its Adafactor does not use."""
    package = types.ModuleType("t5x")
    package.__path__ = [str(pathlib.Path(clone, "t5x"))]
    utils = types.ModuleType("t5x.utils")
    utils.flatten_dict_string_keys = flat
    package.utils = utils
    others = {name: mock.MagicMock() for name in ("jestimator", "jestimator.amos")}
    sys.modules |= {"t5x": package, "t5x.utils": utils, **others}


def flat(tree):
    return flax.traverse_util.flatten_dict(flax.core.unfreeze(tree), sep="/")


def nested(leaves):
    return flax.traverse_util.unflatten_dict(leaves, sep="/")


def variables_of(module):
    """The shapes of the parameters of T5X's network, and their logical axes."""
    network = module.Transformer(config=module.T5Config(**SIZES))
    tokens = jnp.ones((1, 4), jnp.int32)
    made = jax.eval_shape(
        lambda: network.init(jax.random.key(0), tokens, tokens, tokens, enable_dropout=False)
    )
    return flat(made["params"]), flax.core.unfreeze(get_axis_names(made["params_axes"]))


def draw(shapes, seed, *, scale):
    random = np.random.default_rng(seed)
    return nested(
        {k: random.normal(scale=scale, size=x.shape).astype(np.float32) for k, x in shapes.items()}
    )


def main(clone):
    import_t5x(clone)
    adafactor = importlib.import_module("t5x.adafactor")
    frozen = {}
    for name, module in NETWORKS.items():
        shapes, axes = variables_of(importlib.import_module(module))
        rules = adafactor.standard_logical_factor_rules()
        made = adafactor.Adafactor(logical_factor_rules=rules, min_dim_size_to_factor=8)
        made.set_param_axes(axes)
        optimizer = made.create(draw(shapes, 0, scale=0.5))
        for step in range(STEP + 3):
            if step >= STEP:
                states = flat(optimizer.state_dict())
                frozen |= {f"{name}/{step}/{key}": np.asarray(x) for key, x in states.items()}
            gradients = draw(shapes, step + 1, scale=0.1)
            if STEP <= step < STEP + 2:
                frozen |= {f"{name}/{step}/gradient/{k}": x for k, x in flat(gradients).items()}
            rate = 1 / np.sqrt(max(step, 3), dtype=np.float32)
            optimizer = optimizer.apply_gradient(gradients, learning_rate=rate)
    np.savez_compressed(pathlib.Path(__file__).with_name("t5x_adafactor.npz"), **frozen)


if __name__ == "__main__":
    main(sys.argv[1])
