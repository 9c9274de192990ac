"""Weights in 8 bits: each group of 64 numbers has a scale (Dettmers et al. 2021, section 2.1).

A kernel or an embedding is stored as int8, and beside it the scale of each group, the largest
absolute value divided by 127, in float32: 1.06 bytes a number. Numbers are rounded to the nearest
multiple of their scale. Biases, norms, and arrays whose size is no multiple of 64 stay as they are.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array

GROUP = 64
SCALE = ".scale"  # after the name of a parameter
_QUANTIZED = ("kernel", "embedding")


def quantize(params: Mapping[str, Array]) -> dict[str, Array]:
    """Return the parameters by name, kernels and embeddings as int8 beside their scales."""
    found: dict[str, Array] = {}
    for name, array in params.items():
        if not name.endswith(_QUANTIZED) or array.size % GROUP:
            found[name] = array
            continue
        groups = jnp.asarray(array, jnp.float32).reshape(-1, GROUP)
        scale = jnp.max(jnp.abs(groups), axis=1) / 127
        rounded = jnp.round(groups / jnp.where(scale > 0, scale, 1)[:, None])
        found[name] = rounded.astype(jnp.int8).reshape(array.shape)
        found[name + SCALE] = scale
    return found


def dequantize(params: Mapping[str, Array]) -> dict[str, Array]:
    """Return the parameters by name in float32; parameters that are not quantized unchanged."""
    found = {}
    for name, array in params.items():
        if name.endswith(SCALE):
            continue
        scale = params.get(name + SCALE)
        if scale is not None:
            groups = array.astype(jnp.float32).reshape(-1, GROUP)
            array = (groups * scale[:, None]).reshape(array.shape)
        found[name] = array
    return found
