"""How a network is computed, whatever it computes: types, dropout, implementations, loops."""

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp

from t5x_like.models.attention.cores import Core, dense_core
from t5x_like.models.quantized_product import Product

Loop = Literal["auto", "scan", "unroll"]


@dataclasses.dataclass(frozen=True)
class Compute:
    """How a network is computed. A module reads the attributes that concern it.

    Attributes:
        dtype: of activations, and of the parameters in products; some arithmetic, such as that of
            norms and of softmaxes, is float32 for every type.
        dropout: rate in training. What is dropped each module says.
        dropout_broadcast: all positions of a row have the same mask (`make_dropout`), and all
            queries of a head.
        core: of attention: computes the weighted values.
        product: of linear layers, (rows [N, n], kernel [n, m]) -> [N, m], exact or quantized.
        loop: of a stack of layers. `scan` compiles one layer and stacks the parameters, N first;
            `unroll` compiles each layer and names them layer_0, layer_1, ...; `auto` stacks the
            parameters as `scan` does, and compiles each layer where that is faster
            (`stack.unrolls`).
        remat: what the backward pass of a stack recomputes: `none`, or a name in
            `stack.REMAT_POLICIES`.
        lookup: of embeddings. `gather` reads rows; `one_hot` multiplies, which is faster only where
            the vocabulary is sharded on a TPU.
    """

    dtype: Any = jnp.float32
    dropout: float = 0.0
    dropout_broadcast: bool = False
    core: Core = dense_core
    product: Product = jnp.matmul
    loop: Loop = "auto"
    remat: str = "none"
    lookup: Literal["gather", "one_hot"] = "gather"


# ---- Dropout: of each activation, or one mask for all positions of a row.


def make_dropout(compute: Compute) -> nn.Dropout:
    """A dropout layer for activations [..., L, D], at the rate `compute.dropout`.

    With `compute.dropout_broadcast` all L positions have the same mask, as in T5 (Raffel et al.
    2020; Mesh TensorFlow saves L times the random numbers so). Otherwise each number is dropped by
    itself, as Srivastava et al. 2014 have it.
    """
    return nn.Dropout(compute.dropout, broadcast_dims=(-2,) if compute.dropout_broadcast else ())
