"""The kernels of linear layers, transposed: decoding on a CPU multiplies few rows faster so."""

import functools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util
from jaxtyping import Array, Float, PyTree

from t5x_like.models.embeddings.token_embeddings import LinearHead
from t5x_like.models.linear import TRANSPOSED, Linear

# Bytes of a network's parameters. Those of a smaller one stay in the caches of a CPU.
_LEAST = 2**26


class Kernel(NamedTuple):
    """A kernel of a layer.

    Attributes:
        path: its own, in the parameters.
        contract: the number of its first axes that are summed over.
    """

    path: tuple[str, ...]
    contract: int


def pays(params: PyTree) -> bool:
    """Whether a network with these parameters decodes faster with transposed kernels.

    It does on a single CPU. Parameters that are traced stay as they are: transposing them would be
    a part of the program.
    """
    leaves = jax.tree.leaves(params)
    return all(map(_on_one_cpu, leaves)) and sum(x.nbytes for x in leaves) >= _LEAST


def _on_one_cpu(x: Any) -> bool:
    held = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    return held and [device.platform for device in x.devices()] == ["cpu"]


def kernels_of_extend(module: nn.Module, params: PyTree, *, encodes: bool) -> tuple[Kernel, ...]:
    """The kernels that `extend` multiplies by; not those of quantized products.

    Found by tracing it, since only a layer knows which axes of its kernel are summed over.

    Args:
        params: arrays or their shapes.
        encodes: whether the network reads prompts with an encoder.
    """
    shapes = {path: x.shape for path, x in traverse_util.flatten_dict(params).items()}
    found: set[Kernel] = set()

    def add(layer: nn.Module, *, axes: int, contract: int) -> None:
        kernel = Kernel((*layer.path, "kernel"), contract)
        # The kernel of a scanned layer has an axis more, of which the layer knows nothing.
        if len(shapes[kernel.path]) == axes:
            found.add(kernel)

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
    return tuple(sorted(found))


def arrange(params: dict[tuple[str, ...], Array], kernels: tuple[Kernel, ...]) -> dict[str, PyTree]:
    """The variables of a network: these kernels transposed, and its other parameters.

    Args:
        params: by their paths. The kernels are taken out, so that none need be there twice.
    """
    moved = {path: _transpose(params.pop(path), contract=contract) for path, contract in kernels}
    variables = {"params": params, TRANSPOSED: moved}
    return {name: traverse_util.unflatten_dict(part) for name, part in variables.items()}


@functools.partial(jax.jit, static_argnames="contract")
def _transpose(kernel: Float[Array, "..."], *, contract: int) -> Float[Array, "m n"]:
    return kernel.reshape(math.prod(kernel.shape[:contract]), -1).T
