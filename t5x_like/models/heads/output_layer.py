"""The last layer of a head for labelled text."""

import flax.linen as nn

from t5x_like.models.linear import Initializer, Linear


def output_layer(outputs: int, kernel_init: Initializer, name: str) -> nn.Module:
    """A linear layer to a few logits, in float32 for every model.dtype: it costs nothing."""
    return Linear(
        (outputs,), axes=("embed", "classes"), use_bias=True, kernel_init=kernel_init, name=name
    )
