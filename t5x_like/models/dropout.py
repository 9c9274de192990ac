"""Dropout of activations: element-wise, or one mask for all positions of a row."""

import flax.linen as nn


def make_dropout(rate: float, *, broadcast: bool) -> nn.Dropout:
    """A dropout layer for activations [..., L, D].

    Args:
        rate: the share of the numbers that are set to 0.
        broadcast: all L positions have the same mask, as in T5 (Raffel et al. 2020; Mesh TensorFlow
            saves L times the random numbers so). Otherwise each number is dropped by itself, as
            Srivastava et al. 2014 have it.
    """
    return nn.Dropout(rate, broadcast_dims=(-2,) if broadcast else ())
