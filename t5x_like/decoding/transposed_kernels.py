"""Transposed kernels of linear layers, which multiply few rows faster when decoding on a CPU."""

import functools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util
from jaxtyping import Array, Float, PyTree

from t5x_like.nn.embeddings import LinearHead
from t5x_like.nn.linear import TRANSPOSED, Linear

# Bytes of parameters below which transposing does not pay: they stay in the caches of a CPU.
_LEAST = 2**26


class LayerKernel(NamedTuple):
    """A kernel of a layer.

    Attributes:
        path: its path in the parameters.
        contract: the number of leading axes that are summed over.
    """

    path: tuple[str, ...]
    contract: int


def pays(params: PyTree) -> bool:
    """Return whether a network with these parameters decodes faster with transposed kernels.

    It does on a single CPU, for a large network whose parameters are not in 8 bits. Traced
    parameters are not transposed, since the transposition would become part of the traced program.
    """
    leaves = jax.tree.leaves(params)
    if any(x.dtype == jnp.int8 for x in leaves):
        return False
    return all(map(_on_one_cpu, leaves)) and sum(x.nbytes for x in leaves) >= _LEAST


def _on_one_cpu(x: Any) -> bool:
    held = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    return held and [device.platform for device in x.devices()] == ["cpu"]


def kernels_of_extend(
    module: nn.Module, params: PyTree, *, encodes: bool
) -> tuple[LayerKernel, ...]:
    """Return the kernels that `extend` multiplies by, except in quantized products.

    They are found by tracing `extend`, since only a layer knows which axes of its kernel are
    summed over.

    Args:
        params: arrays or their shapes.
        encodes: whether the network reads prompts with an encoder.
    """
    shapes = {path: x.shape for path, x in traverse_util.flatten_dict(params).items()}
    kernels: set[LayerKernel] = set()

    def add(layer: nn.Module, *, axes: int, contract: int) -> None:
        kernel = LayerKernel((*layer.path, "kernel"), contract)
        # Skip the kernel of a scanned layer: it has one more axis, which the layer does not see.
        if len(shapes[kernel.path]) == axes:
            kernels.add(kernel)

    def note(
        call: Any, arguments: Any, keywords: Any, context: nn.module.InterceptorContext
    ) -> Any:
        layer, method = context.module, context.method_name
        if (
            isinstance(layer, Linear)
            and method == "__call__"
            and layer.compute.product is jnp.matmul
        ):
            add(layer, axes=layer.contract + len(layer.features), contract=layer.contract)
        elif isinstance(layer, LinearHead) and method == "product":
            add(layer, axes=2, contract=1)
        return call(*arguments, **keywords)

    def extend(params: PyTree) -> Any:
        token = jnp.zeros((1, 1), jnp.int32)
        apply = functools.partial(module.apply, {"params": params})
        prompt = {"decoder_input_tokens": token}
        if encodes:
            prompt["encoder_input_tokens"] = token
        _, cache = apply(**prompt, cache_length=2, method="prefill")
        with nn.intercept_methods(note):
            return apply(token, cache, method="extend")

    jax.eval_shape(extend, params)
    return tuple(sorted(kernels))


def arrange(
    params: dict[tuple[str, ...], Array], kernels: tuple[LayerKernel, ...]
) -> dict[str, PyTree]:
    """Return the variables of a network: these kernels transposed, and the other parameters.

    Args:
        params: {path: array}. The kernels are popped from it, so that no kernel is held twice.
    """
    moved = {path: _transpose(params.pop(path), contract=contract) for path, contract in kernels}
    variables = {"params": params, TRANSPOSED: moved}
    return {name: traverse_util.unflatten_dict(part) for name, part in variables.items()}


@functools.partial(jax.jit, static_argnames="contract")
def _transpose(kernel: Float[Array, "..."], *, contract: int) -> Float[Array, "m n"]:
    return kernel.reshape(math.prod(kernel.shape[:contract]), -1).T
