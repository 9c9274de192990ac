"""The gradient of T5's relative position bias through cuDNN's kernel, beside dense attention."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.models.attention.cache import KeyValues
from t5x_like.models.attention.cores import Core, dense_core
from t5x_like.models.attention.cudnn import cudnn_core
from t5x_like.models.attention.masks import AttentionMask
from t5x_like.models.attention.relative_buckets import RelativeBias

HEADS, WIDTH = 16, 64  # of T5 1.1 large


def check(core: Core = cudnn_core, *, rows: int = 8, length: int = 512) -> list[str]:
    """A line for each kind of mask: the gradient of T5's table of biases, beside dense attention.

    Both have the same bfloat16 inputs, in the shape of T5 1.1 large; the reference is dense
    attention in float32, so dense attention in bfloat16 shows what rounding alone does.
    """
    if core is cudnn_core and jax.default_backend() != "gpu":
        return ["gradient of T5's bias: not checked, there is no GPU"]
    ends = np.linspace(length // 4, length, rows, dtype=np.int32)[:, None]
    padded = (np.arange(length) < ends).astype(np.int32)
    packed = 1 + (np.arange(length) >= ends // 2) + (np.arange(length) >= ends)
    masks = {
        "full": AttentionMask(),
        "causal": AttentionMask(visibility="causal"),
        "padded": AttentionMask(key_segments=padded, padding="at_end"),
        "packed": AttentionMask(query_segments=packed, key_segments=packed),
    }
    return [_line(name, mask, core, rows, length) for name, mask in masks.items()]


def _line(name: str, mask: AttentionMask, core: Core, rows: int, length: int) -> str:
    wanted = _gradient(dense_core, mask, rows, length, dtype=jnp.float32)
    differences = (
        np.max(np.abs(_gradient(one, mask, rows, length, dtype=jnp.bfloat16) - wanted))
        for one in (core, dense_core)
    )
    ours, rounding = (float(x / np.max(np.abs(wanted))) for x in differences)
    return (
        f"gradient of T5's bias, {name}: largest difference from dense attention in float32 "
        f"{ours:.1e} of the largest gradient, of dense attention in bfloat16 {rounding:.1e}"
    )


def _gradient(core: Core, mask: AttentionMask, rows: int, length: int, *, dtype: Any) -> np.ndarray:
    """The gradient of the table [b, H] for random inputs, which are numbers of bfloat16."""
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = [(rows, length, HEADS, WIDTH), *[(rows, HEADS, length, WIDTH)] * 2]
    arrays = [
        jax.random.normal(key, shape, jnp.bfloat16).astype(dtype)
        for key, shape in zip(keys[:3], shapes, strict=True)
    ]
    table = jax.random.normal(keys[3], (32, HEADS), jnp.bfloat16).astype(jnp.float32)
    upstream = jax.random.normal(keys[4], shapes[0], jnp.bfloat16).astype(jnp.float32)

    def total(table: Any, query: Any, key: Any, value: Any, segments: Any, upstream: Any) -> Any:
        own, read = segments
        seen = dataclasses.replace(mask, query_segments=own, key_segments=read)
        bidirectional = mask.visibility != "causal"
        bias = RelativeBias(table, bidirectional=bidirectional).dense(
            queries=length, keys=length, dtype=dtype
        )
        out = core(query, KeyValues(key, value), bias=bias, mask=seen, scale=WIDTH**-0.5)
        return jnp.sum(out.astype(jnp.float32) * upstream)

    # All arrays are arguments: those of a closure would be computed while compiling.
    segments = mask.query_segments, mask.key_segments
    return np.asarray(jax.jit(jax.grad(total))(table, *arrays, segments, upstream))
