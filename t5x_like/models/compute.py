"""How a network is computed, independent of its architecture: dtype, dropout, kernels, loops."""

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp

from t5x_like.models.attention.cores import Core, dense_core
from t5x_like.models.quantized_product import Product

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
        remat: the activations that the backward pass of a stack recomputes: `none`, or a name in
            `stack.REMAT_POLICIES`.
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
