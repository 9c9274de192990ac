"""A tiny UniLM, and its outputs under the mask of each language model."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import systems
from t5x_like.losses import forward
from t5x_like.systems import unilm
from t5x_like.systems.unilm import SEGMENTS

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
    module = systems.build("unilm", TINY | {"head": head})
    random = np.random.default_rng(1)

    def sample(path, leaf):
        gain = float(path[-1].key == "scale")
        return jnp.asarray(gain + 0.3 * random.standard_normal(leaf.shape, np.float32))

    return module, jax.tree_util.tree_map_with_path(sample, shapes(module))


def shapes(module):
    boxed = jax.eval_shape(module.init, jax.random.key(0), module.example_batch())
    return nn.unbox(boxed)["params"]


def under(kind, batch):
    """A batch of the segments 0 and 1 with those of a language model."""
    first, second = SEGMENTS[kind]
    return {**batch, "encoder_token_types": jnp.where(batch["encoder_token_types"], second, first)}


@jax.jit
def outputs(params, batch):
    return forward(make()[0], params, batch, None)


def read(batch, kind):
    """The outputs for a batch of the segments 0 and 1 under the mask of a language model."""
    return outputs(make()[1], under(kind, batch))
