"""Normalisation layers with their logical axes."""

import functools

import flax.linen as nn

# Gains are a vector a layer: sharding them saves nothing and costs a gather, so they have an
# axis name of their own, which the rules leave replicated.
_GAIN = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))

RMSNorm = functools.partial(nn.RMSNorm, epsilon=1e-6, scale_init=_GAIN)

# Two passes: the variance as E[x^2] - E[x]^2 loses half of float32's digits where the mean is
# large beside the deviation, as it is in the embeddings of published models.
LayerNorm = functools.partial(
    nn.LayerNorm,
    scale_init=_GAIN,
    bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("norm",)),
    use_fast_variance=False,
)
