"""Dropout of activations: element-wise, or one mask for all positions of a row."""

import flax.linen as nn

from t5x_like.models.compute import Compute


def make_dropout(compute: Compute) -> nn.Dropout:
    """A dropout layer for activations [..., L, D], at the rate `compute.dropout`.

    With `compute.dropout_broadcast` all L positions have the same mask, as in T5 (Raffel et al.
    2020; Mesh TensorFlow saves L times the random numbers so). Otherwise each number is dropped by
    itself, as Srivastava et al. 2014 have it.
    """
    return nn.Dropout(compute.dropout, broadcast_dims=(-2,) if compute.dropout_broadcast else ())
