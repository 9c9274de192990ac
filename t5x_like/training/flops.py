"""Model FLOPs of a function, counted from its jaxpr, and the peak FLOP/s of known devices."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core


def count(fn: Callable[..., Any], *args: Any) -> int:
    """Count the FLOPs of the matrix products and convolutions of `fn(*args)`, 2 a multiply-add.

    For a forward pass these are the model FLOPs of Chowdhery et al. 2022 (PaLM), appendix B:
    attention counts all pairs of positions, masked or not, also where a core skips masked ones;
    element-wise operations, gathers and rematerialization do not count. Nothing is computed; the
    arguments may be `jax.ShapeDtypeStruct`s.

    A scan counts its body times its length, a `cond` its most expensive branch. Shapes are global:
    the body of a `shard_map` counts once a device.

    Raises:
        ValueError: a `while` loop has matrix products: its number of iterations is unknown.
    """
    return _of_jaxpr(jax.make_jaxpr(fn)(*args))


def training(fn: Callable[..., Any], *args: Any) -> int:
    """Count the FLOPs of a loss and its gradient: 3 times the forward pass.

    The backward pass has two products for each in the forward pass, one for the gradient of each
    factor (Kaplan et al. 2020, section 2.1; PaLM, appendix B).
    """
    return 3 * count(fn, *args)


def peak_flops(device: jax.Device, dtype: Any = jnp.bfloat16) -> float | None:
    """The published dense peak of a device in FLOP/s, or None where it is not known.

    Only for bfloat16 and float16: the peak of float32 products depends on their precision. A device
    is one of JAX's: on TPU v2, v3 and 7x half a chip.
    """
    if jnp.dtype(dtype) not in (jnp.bfloat16, jnp.float16):
        return None
    return peak_of_kind(device.device_kind)


def peak_of_kind(name: str) -> float | None:
    """The same of a device with this `device_kind`, such as "TPU v4", which need not be there."""
    return _PEAKS[name] * 1e12 if name in _PEAKS else None


# Dense bfloat16 TFLOP/s by the whole `device_kind`, since a name that begins like another's is
# another device: L40 and L4, H100 NVL and H100, a slice of a GPU ("... MIG 1g.10gb").
_PEAKS = {
    # TPU: cloud.google.com/tpu/docs, "System architecture", peak compute per chip in bf16: v2 45,
    # v3 123, v4 275, v5e 197, v5p 459, v6e 918, 7x (Ironwood) 2307; of v4i Jouppi et al. 2021. The
    # names are libtpu's and those of JAX's own table. Chips of v2, v3 and 7x are two devices; v4
    # and v5p chips are one.
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
    # NVIDIA: the product datasheets, BF16 Tensor Core; of the RTX 4090 the Ada whitepaper, with
    # float32 sums. Where they print the figure with 2:4 sparsity, dense is half of it. The names
    # are the driver's (github.com/NVIDIA/open-gpu-kernel-modules, "Compatible GPUs"). "NVIDIA
    # H100" is an SXM5 board with another memory.
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


# Programs of `models.attention.blockwise`: blocks of so many queries have the keys up to their end.
_CAUSAL_BLOCKS = re.compile(r"causal_blocks_of_(\d+)")
# Programs of `models.ragged_product`, whose loops have as many steps as groups have rows.
_RAGGED_PRODUCTS = ("ragged_product_of_rows", "ragged_product_of_groups")
# Programs of `models.attention.cudnn`: so many features of each head are the mask.
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
    if name == "jit" and (features := _BESIDE_FEATURES.fullmatch(params["name"])):
        width = _shape(equation.outvars[0])[-1]
        return sum(inner) * width // (width + int(features[1]))
    if name == "cond":
        return max(inner)
    if name == "while" and any(inner):
        raise ValueError("a while loop has matrix products: its number of iterations is unknown")
    return sum(inner) * _repetitions(name, params)


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """The programs inside an equation: of jit, remat, scan, cond, custom derivatives, kernels."""
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
    # Every row meets the matrix of one group, so the number of groups does not count.
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    return _product(equation, contracted)


def _product(equation: core.JaxprEqn, contracted: tuple[int, ...]) -> int:
    left, out = _shape(equation.invars[0]), _shape(equation.outvars[0])
    return 2 * math.prod(out) * math.prod(left[axis] for axis in contracted)


def _ragged_product(equation: core.JaxprEqn) -> int:
    # Differentiation cuts off what is known without the rows, as a program of the same name.
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
    # What `jax.nn.dot_product_attention` calls on a GPU: two products over all pairs of positions.
    query, key = _shape(equation.invars[0]), _shape(equation.invars[1])
    heads_first = equation.params["layout"]  # 0: [B, L, H, K], 1: [B, H, L, K]
    return 2 * 2 * math.prod(query) * key[2 if heads_first else 1]


def _of_all_pairs(count: int, equation: core.JaxprEqn, *, queries: int) -> int:
    """The FLOPs for all pairs of positions, from those for each block of so many queries."""
    if count == 0:  # a part of the program that makes masks alone
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
