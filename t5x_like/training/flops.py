"""Model FLOPs of a function, counted in its jaxpr, and the peak FLOP/s of known devices."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core


def count(fn: Callable[..., Any], *args: Any) -> int:
    """Count the FLOPs of the products and convolutions of `fn(*args)`, 2 per multiply-add.

    For a forward pass these are the model FLOPs of Chowdhery et al. 2022 (PaLM), appendix B:
    attention counts all pairs of positions, masked or not, even if the implementation skips masked
    pairs; element-wise operations, gathers and rematerialization do not count. The function is only
    traced; the arguments may be `jax.ShapeDtypeStruct`s.

    A scan counts as its body times its length, a `cond` as its most expensive branch. Shapes are
    global: the body of a `shard_map` counts once per device.

    Raises:
        ValueError: a `while` loop has matrix products: its number of iterations is unknown.
    """
    return _of_jaxpr(jax.make_jaxpr(fn)(*args))


def training(fn: Callable[..., Any], *args: Any) -> int:
    """Count the FLOPs of a loss and its gradient: 3 times the forward pass.

    For each product of the forward pass, the backward pass has two: one for the gradient of each
    factor (Kaplan et al. 2020, section 2.1; PaLM, appendix B).
    """
    return 3 * count(fn, *args)


def peak_flops(device: jax.Device, dtype: Any = jnp.bfloat16) -> float | None:
    """Return the published dense peak of a device in FLOP/s, or None if it is not known.

    It is known only for bfloat16 and float16: the peak of float32 products depends on their
    precision. A device is a JAX device: on TPU v2, v3 and 7x half a chip.
    """
    if jnp.dtype(dtype) not in (jnp.bfloat16, jnp.float16):
        return None
    return peak_of_kind(device.device_kind)


def peak_of_kind(name: str) -> float | None:
    """Return the bfloat16 peak of a `device_kind`, such as "TPU v4", in FLOP/s, or None."""
    return _PEAKS[name] * 1e12 if name in _PEAKS else None


# Dense bfloat16 TFLOP/s by the exact `device_kind`, since devices whose names share a prefix
# differ: L40 and L4, H100 NVL and H100, a slice of a GPU ("... MIG 1g.10gb").
_PEAKS = {
    # TPU: cloud.google.com/tpu/docs, "System architecture", peak compute per chip in bf16: v2 45,
    # v3 123, v4 275, v5e 197, v5p 459, v6e 918, 7x (Ironwood) 2307; v4i from Jouppi et al. 2021.
    # The names are from libtpu and from JAX's table. A chip of v2, v3 or 7x is two devices; a chip
    # of v4 or v5p is one.
    "TPU v2": 22.5,
    "TPU v3": 61.5,
    "TPU v4 lite": 138.0,
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5": 459.0,
    "TPU v5p": 459.0,
    "TPU v6 lite": 918.0,
    "TPU v6e": 918.0,
    "TPU7x": 1153.5,
    # NVIDIA: the product datasheets, BF16 Tensor Core; for the RTX 4090 the Ada whitepaper, with
    # float32 sums. Figures that are printed with 2:4 sparsity are halved. The names are from the
    # driver (github.com/NVIDIA/open-gpu-kernel-modules, "Compatible GPUs"). "NVIDIA H100" is an
    # SXM5 board with a different memory.
    "NVIDIA A100-SXM4-40GB": 312.0,
    "NVIDIA A100-SXM4-80GB": 312.0,
    "NVIDIA A100-PCIE-40GB": 312.0,
    "NVIDIA A100 80GB PCIe": 312.0,
    "NVIDIA A800-SXM4-40GB": 312.0,
    "NVIDIA A800-SXM4-80GB": 312.0,
    "NVIDIA A800 80GB PCIe": 312.0,
    "NVIDIA A30": 165.0,
    "NVIDIA A40": 149.7,
    "NVIDIA A10": 125.0,
    "NVIDIA H100": 989.5,
    "NVIDIA H100 80GB HBM3": 989.5,
    "NVIDIA H100 PCIe": 756.5,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA H800": 989.5,
    "NVIDIA H800 PCIe": 756.5,
    "NVIDIA H200": 989.5,
    "NVIDIA H200 NVL": 835.5,
    "NVIDIA GH200 120GB": 989.5,
    "NVIDIA GH200 480GB": 989.5,
    "NVIDIA B200": 2250.0,
    "NVIDIA GB200": 2500.0,
    "NVIDIA L40S": 362.05,
    "NVIDIA L40": 181.05,
    "NVIDIA L4": 121.0,
    "NVIDIA GeForce RTX 4090": 165.2,
}


# Jitted functions of `nn.attention.cores`: each block of this many queries attends only to
# the keys up to its end, so all pairs must be computed from the counted pairs.
_CAUSAL_BLOCKS = re.compile(r"causal_blocks_of_(\d+)")
# Jitted functions of `nn.matrix_product`, whose loops have data-dependent numbers of steps.
_RAGGED_PRODUCTS = ("ragged_product_of_rows", "ragged_product_of_groups")
# Jitted functions of `nn.matrix_product`: so many of the rows belong to a group, on average.
_FILLED_ROWS = re.compile(r"product_of_(\d+)_in_(\d+)_rows")
# Jitted functions of `nn.attention.kernels`: this many features of each head encode the mask.
_BESIDE_FEATURES = re.compile(r"attention_beside_(\d+)_features")


def _of_jaxpr(jaxpr: Any) -> int:
    return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: core.JaxprEqn) -> int:
    name, params = equation.primitive.name, equation.params
    if name in _PRODUCTS:
        return _PRODUCTS[name](equation)
    if name == "jit" and params["name"] in _RAGGED_PRODUCTS:
        return _ragged_product(equation)
    inner = [_of_jaxpr(jaxpr) for jaxpr in _jaxprs(params)]
    if name == "jit" and (blocks := _CAUSAL_BLOCKS.fullmatch(params["name"])):
        return _of_all_pairs(sum(inner), equation, queries=int(blocks[1]))
    if name == "jit" and (rows := _FILLED_ROWS.fullmatch(params["name"])):
        return sum(inner) * int(rows[1]) // int(rows[2])
    if name == "jit" and (features := _BESIDE_FEATURES.fullmatch(params["name"])):
        width = _shape(equation.outvars[0])[-1]
        return sum(inner) * width // (width + int(features[1]))
    if name == "cond":
        return max(inner)
    if name == "while" and any(inner):
        raise ValueError("a while loop has matrix products: its number of iterations is unknown")
    return sum(inner) * _repetitions(name, params)


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the jaxprs inside an equation: of jit, remat, scan, cond, custom gradients, kernels."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if hasattr(item, "eqns"):  # Jaxpr and ClosedJaxpr alike
                yield item


def _repetitions(name: str, params: dict[str, Any]) -> int:
    if name == "scan":
        return params["length"]
    if name == "shard_map":
        return math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
    if name == "pallas_call":
        return math.prod(params["grid_mapping"].grid)
    return 1


def _dot_general(equation: core.JaxprEqn) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    return _product(equation, contracted)


def _ragged_dot_general(equation: core.JaxprEqn) -> int:
    # Each row is multiplied by the matrix of one group, so the number of groups does not count.
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    return _product(equation, contracted)


def _product(equation: core.JaxprEqn, contracted: tuple[int, ...]) -> int:
    left, out = _shape(equation.invars[0]), _shape(equation.outvars[0])
    return 2 * math.prod(out) * math.prod(left[axis] for axis in contracted)


def _ragged_product(equation: core.JaxprEqn) -> int:
    # Differentiation splits off the part that does not depend on the rows, under the same name;
    # it has no products.
    if not any(map(_multiplies, _jaxprs(equation.params))):
        return 0
    rows = _shape(equation.invars[0])[0]
    shapes = map(_shape, (*equation.invars, *equation.outvars))
    [(_, *matrix)] = (shape for shape in shapes if len(shape) == 3)
    return 2 * rows * math.prod(matrix)


def _multiplies(jaxpr: Any) -> bool:
    return any(
        equation.primitive.name in _PRODUCTS or any(map(_multiplies, _jaxprs(equation.params)))
        for equation in jaxpr.eqns
    )


def _convolution(equation: core.JaxprEqn) -> int:
    kernel, out = _shape(equation.invars[1]), _shape(equation.outvars[0])
    output_features = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
    return 2 * math.prod(out) * math.prod(kernel) // output_features


def _cudnn_attention(equation: core.JaxprEqn) -> int:
    # `jax.nn.dot_product_attention` on a GPU: two products over all pairs of positions.
    query, key = _shape(equation.invars[0]), _shape(equation.invars[1])
    heads_first = equation.params["layout"]  # 0: [B, L, H, K], 1: [B, H, L, K]
    return 2 * 2 * math.prod(query) * key[2 if heads_first else 1]


def _of_all_pairs(count: int, equation: core.JaxprEqn, *, queries: int) -> int:
    """Scale the FLOPs of causal blocks of `queries` queries to the FLOPs of all pairs."""
    if count == 0:  # the part of the program that only makes masks
        return 0
    length = _shape(equation.outvars[0])[1]
    ends = [min(begin + queries, length) for begin in range(0, length, queries)]
    pairs = sum((end - begin) * end for begin, end in zip([0, *ends], ends, strict=False))
    return count * length**2 // pairs


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


_PRODUCTS: dict[str, Callable[[core.JaxprEqn], int]] = {
    "dot_general": _dot_general,
    "ragged_dot_general": _ragged_dot_general,
    "conv_general_dilated": _convolution,
    "dot_product_attention_fwd": _cudnn_attention,
    "dot_product_attention_fwd_wrapper": _cudnn_attention,
}
