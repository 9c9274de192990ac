"""The forward pass inside a loss."""

from typing import Any

import flax.linen as nn
import jax

from t5x_like.nn.compute import Batch


def forward(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    method: str | None = None,
    mutable: Any = False,
    **arguments: Any,
) -> Any:
    """Run a network on a batch, with dropout if a key is given.

    Args:
        rng: the dropout key; None in evaluation, where the network is deterministic.
        method: the module's method to call; None for `__call__`.
        mutable: collections that the forward pass writes, see `flax.linen.Module.apply`.
        arguments: further arguments of the method.

    Returns:
        The outputs of the method; with `mutable`, the pair (outputs, collections).
    """
    return module.apply(
        {"params": params},
        batch,
        deterministic=rng is None,
        rngs=None if rng is None else {"dropout": rng},
        method=method,
        mutable=mutable,
        **arguments,
    )
