"""Layer norms with their logical axes."""

import functools

import flax.linen as nn

# A gain is one vector per layer: sharding it saves nothing and costs a gather, so it has an axis
# name of its own, which the rules keep replicated.
_GAIN = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))

RMSNorm = functools.partial(nn.RMSNorm, epsilon=1e-6, scale_init=_GAIN)

# Two passes: E[x^2] - E[x]^2 loses half of float32's digits where the mean is large compared with
# the deviation, as in the embeddings of published models.
LayerNorm = functools.partial(
    nn.LayerNorm,
    scale_init=_GAIN,
    bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("norm",)),
    use_fast_variance=False,
)
