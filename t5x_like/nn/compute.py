"""How a network is computed, independent of its architecture: dtype, dropout, kernels, loops.

Also the types of what networks take and return, and how settings deep inside one are changed.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array

from t5x_like.nn.attention.cores import Core, dense_core
from t5x_like.nn.matrix_product import Product

Batch = Mapping[str, Array]
Outputs = dict[str, Array]
Activation = Callable[[Array], Array]

# Hendrycks and Gimpel 2016, section 2: x times the distribution function of the standard normal, by
# the error function or approximated by tanh.
GELU: Activation = functools.partial(nn.gelu, approximate=False)
GELU_TANH: Activation = functools.partial(nn.gelu, approximate=True)

Loop = Literal["auto", "scan", "unroll"]


@dataclasses.dataclass(frozen=True)
class Compute:
    """How a network is computed. A module reads the attributes that apply to it.

    Attributes:
        dtype: the dtype of activations, and of parameters in products; some arithmetic, such as
            norms and softmaxes, is always float32.
        dropout: the rate in training. Each module documents the activations it applies to.
        dropout_broadcast: whether all positions of a row (`make_dropout`) and all queries of a head
            share one dropout mask.
        core: the attention function, which computes the weighted values.
        product: the product of linear layers, (rows [N, n], kernel [n, m]) -> [N, m], exact or
            quantized.
        loop: the loop of a stack of layers. `scan` compiles one layer and stacks the parameters
            along a first axis N; `unroll` compiles each layer and names the parameters layer_0,
            layer_1, ...; `auto` stacks the parameters like `scan`, and compiles each layer if that
            is faster (`stack.unrolls`).
        remat: the activations that the backward pass of a stack recomputes: `none`, or what
            `stack.remat_policy` takes.
        lookup: the embedding look-up. `gather` reads rows; `one_hot` multiplies, which is faster
            only if the vocabulary is sharded on a TPU.
    """

    dtype: Any = jnp.float32
    dropout: float = 0.0
    dropout_broadcast: bool = False
    core: Core = dense_core
    product: Product = jnp.matmul
    loop: Loop = "auto"
    remat: str = "none"
    lookup: Literal["gather", "one_hot"] = "gather"


# ---- Dropout: independent for each activation, or one mask for all positions of a row.


def make_dropout(compute: Compute) -> nn.Dropout:
    """Make a dropout layer for activations [..., L, D], with the rate `compute.dropout`.

    With `compute.dropout_broadcast` all L positions share one mask, as in T5 (Raffel et al. 2020),
    whose Mesh TensorFlow thus needs L times fewer random numbers. Otherwise each activation is
    dropped independently, as in Srivastava et al. 2014.
    """
    return nn.Dropout(compute.dropout, broadcast_dims=(-2,) if compute.dropout_broadcast else ())


Change = Callable[[functools.partial], Mapping[str, Any]]


def change_settings(module: nn.Module, kind: type, change: Change) -> nn.Module:
    """Return the network with changed settings of all its modules of one class.

    Searches the factories in the fields of `module`, and recursively tuples of factories and the
    factories' keywords.

    Args:
        kind: the class.
        change: a function from the factory of such a module to the settings to replace.

    Returns:
        A copy of the network; the network itself if nothing changes.
    """
    fields = {field.name: getattr(module, field.name) for field in dataclasses.fields(module)}
    changed = {
        name: new
        for name, old in fields.items()
        if (new := change_factories(old, kind, change)) is not old
    }
    return module.clone(**changed) if changed else module


def change_factories(value: Any, kind: type, change: Change) -> Any:
    """Change a factory or a tuple of factories, see `change_settings`.

    Values of other types, and factories without a module of the class, are returned unchanged.
    """
    if isinstance(value, tuple):
        parts = [change_factories(part, kind, change) for part in value]
        same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else tuple(parts)
    if not isinstance(value, functools.partial):
        return value
    keywords = {name: change_factories(part, kind, change) for name, part in value.keywords.items()}
    if isinstance(value.func, type) and issubclass(value.func, kind):
        keywords |= change(value)
    if keywords.keys() == value.keywords.keys() and all(
        value.keywords[name] is part for name, part in keywords.items()
    ):
        return value
    return functools.partial(value.func, *value.args, **keywords)
