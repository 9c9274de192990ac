"""The loss of every system that predicts the next token, of a text or of targets for inputs."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from t5x_like.losses import terms


def loss(
    module: nn.Module,
    params: Any,
    batch: Mapping[str, jax.Array],
    rng: jax.Array | None,
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> terms.LossSums:
    """Cross-entropy of the targets: its sum, the sum of the weights, and metrics.

    Args:
        rng: key of dropout; None in evaluation.
    """
    logits = module.apply(
        {"params": params},
        batch,
        deterministic=rng is None,
        rngs=None if rng is None else {"dropout": rng},
    )
    return terms.cross_entropy(
        logits,
        batch["decoder_target_tokens"],
        batch["decoder_loss_weights"],
        z_loss=z_loss,
        label_smoothing=label_smoothing,
    )
