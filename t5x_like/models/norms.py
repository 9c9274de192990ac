"""Normalisation layers with their logical axes."""

import functools

import flax.linen as nn

# Gains are a vector a layer: sharding them saves nothing and costs a gather, so they have an
# axis name of their own, which the rules leave replicated.
RMSNorm = functools.partial(
    nn.RMSNorm,
    epsilon=1e-6,
    scale_init=nn.with_logical_partitioning(nn.initializers.ones, ("norm",)),
)
