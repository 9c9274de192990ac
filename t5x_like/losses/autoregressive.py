"""The next-token loss of language models and of encoder-decoders."""

from typing import Any

import flax.linen as nn
import jax

from t5x_like.losses.sums import LossSums, forward
from t5x_like.losses.token_cross_entropy import cross_entropy
from t5x_like.nn.compute import Batch


def loss(
    module: nn.Module,
    params: Any,
    batch: Batch,
    rng: jax.Array | None,
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> LossSums:
    """Return the cross-entropy of the target tokens, see `losses.cross_entropy`.

    Args:
        batch: the network's inputs, `decoder_target_tokens` and `decoder_loss_weights` [B, T].
        rng: the dropout key; None in evaluation.
    """
    return cross_entropy(
        forward(module, params, batch, rng, method="logits_product"),
        batch["decoder_target_tokens"],
        batch["decoder_loss_weights"],
        z_loss=z_loss,
        label_smoothing=label_smoothing,
    )
