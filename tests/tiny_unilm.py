"""A tiny UniLM, and what it says of a batch under each kind of language model."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.losses import forward
from t5x_like.models.networks.unified_encoder import KINDS
from t5x_like.systems import unilm

TINY = unilm.SIZES["base"] | {
    "vocab_size": 32,
    "positions": 24,
    "layers": 2,
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "sep_id": 3,
    "mask_id": 4,
    "dropout": 0.0,
}


@functools.cache
def make(head="pretraining"):
    """A module, and parameters large enough that every input moves every output that sees it."""
    module = unilm.build(TINY | {"head": head})
    random = np.random.default_rng(1)

    def draw(path, leaf):
        gain = float(path[-1].key == "scale")
        return jnp.asarray(gain + 0.3 * random.standard_normal(leaf.shape, np.float32))

    return module, jax.tree_util.tree_map_with_path(draw, shapes(module))


def shapes(module):
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return nn.unbox(boxed)["params"]


@jax.jit
def under(params, batch, number):
    """What is said of a batch under the kind of a number in KINDS."""
    return forward(make()[0], params, {**batch, "language_model": number}, None)


def read(batch, kind):
    return under(make()[1], batch, KINDS.index(kind))
