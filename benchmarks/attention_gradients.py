"""Compare the gradients of cuDNN's and dense attention, for the kinds that the systems train."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.nn.attention.cache import KeyValues
from t5x_like.nn.attention.cores import Core, dense_core
from t5x_like.nn.attention.kernels import cudnn_core
from t5x_like.nn.attention.positions import AttentionMask, RelativeBias


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of attention.

    Attributes:
        heads, groups, width: query heads, key-value heads, width of a head.
        mask: which keys each query reads; its segments have the length given to `check`.
        biased: whether T5's relative position bias is added to the scores.
    """

    heads: int
    groups: int
    width: int
    mask: AttentionMask
    biased: bool = False


def kinds(*, rows: int, length: int) -> dict[str, Kind]:
    """Return {name: kind}, for rows with padding and with two packed documents."""
    ends = np.linspace(length // 4, length, rows, dtype=np.int32)[:, None]
    slots = np.arange(length)
    right = (slots < ends).astype(np.int32)
    left = right[:, ::-1]
    packed = 1 + (slots >= ends // 2) + (slots >= ends)
    masks = {
        "full": AttentionMask(),
        "causal": AttentionMask(visibility="causal"),
        "padded": AttentionMask(key_segments=right, padding="at_end"),
        "packed": AttentionMask(query_segments=packed, key_segments=packed),
        "causal, packed": AttentionMask(
            visibility="causal", query_segments=packed, key_segments=packed
        ),
        "causal, padded on the left": AttentionMask(
            visibility="causal", query_segments=left, key_segments=left
        ),
        "causal window": AttentionMask(visibility="causal", window=length // 4),
    }
    t5 = {
        f"T5's bias, {name}": Kind(16, 16, 64, masks[name], biased=True)
        for name in ("full", "causal", "padded", "packed")
    }
    narrow = {f"heads of 64, {name}": Kind(16, 16, 64, mask) for name, mask in masks.items()}
    wide = {
        f"heads of 128 in groups, {name}": Kind(16, 4, 128, mask)
        for name, mask in masks.items()
        if mask.visibility == "causal"
    }
    return t5 | narrow | wide


def check(core: Core = cudnn_core, *, rows: int = 8, length: int = 512) -> list[str]:
    """Return a line for each kind: the largest difference of each gradient from dense attention.

    Both have the same bfloat16 inputs. The reference is dense attention in float32, so that dense
    attention in bfloat16 shows the effect of rounding.
    """
    if core is cudnn_core and jax.default_backend() != "gpu":
        return ["gradients of attention: not checked, there is no GPU"]
    return [
        _line(name, kind, core, rows, length)
        for name, kind in kinds(rows=rows, length=length).items()
    ]


def _line(name: str, kind: Kind, core: Core, rows: int, length: int) -> str:
    wanted = _gradients(dense_core, kind, rows, length, dtype=jnp.float32)
    of_core, rounding = (
        max(np.max(np.abs(x - y)) / np.max(np.abs(y)) for x, y in zip(found, wanted, strict=True))
        for found in (
            _gradients(one, kind, rows, length, dtype=jnp.bfloat16) for one in (core, dense_core)
        )
    )
    return (
        f"{name}: largest difference from dense attention in float32 {of_core:.1e} of the largest "
        f"gradient, of dense attention in bfloat16 {rounding:.1e}"
    )


def _gradients(
    core: Core, kind: Kind, rows: int, length: int, *, dtype: Any
) -> tuple[np.ndarray, ...]:
    """Return the gradients of queries, keys and values, and of a bias table [buckets, H] if any."""
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = [(rows, length, kind.heads, kind.width)]
    shapes += [(rows, kind.groups, length, kind.width)] * 2
    arrays = tuple(
        jax.random.normal(key, shape, jnp.bfloat16).astype(dtype)
        for key, shape in zip(keys[:3], shapes, strict=True)
    )
    table = jax.random.normal(keys[3], (32, kind.heads), jnp.bfloat16).astype(jnp.float32)
    upstream = jax.random.normal(keys[4], shapes[0], jnp.bfloat16).astype(jnp.float32)
    segments = kind.mask.query_segments, kind.mask.key_segments
    if segments[0] is not None:  # padded queries have no loss
        upstream *= (segments[0] > 0)[:, :, None, None]

    def total(read: Any, segments: Any, upstream: Any) -> Any:
        query, key, value, *tables = read
        mask = dataclasses.replace(kind.mask, query_segments=segments[0], key_segments=segments[1])
        bias = None
        if tables:
            relative = RelativeBias(tables[0], bidirectional=mask.visibility != "causal")
            bias = relative.dense(queries=length, keys=length, dtype=dtype)
        settings = {"bias": bias, "mask": mask, "scale": kind.width**-0.5}
        out = core(query, KeyValues(key, value), **settings)
        return jnp.sum(out.astype(jnp.float32) * upstream)

    read = (*arrays, table) if kind.biased else arrays
    # All arrays are arguments: arrays in a closure would be constants, folded while compiling.
    found = jax.jit(jax.grad(total))(read, segments, upstream)
    return tuple(np.asarray(x, np.float32) for x in found)
