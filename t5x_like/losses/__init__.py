"""Every loss, as a sum and a weight: language modeling, masked tokens, labels, distillation."""

from t5x_like.losses.terms import (
    LossSums,
    binary,
    classification,
    combine,
    cross_entropy,
    predicted,
    regression,
    spans,
    tagging,
)

__all__ = [
    "LossSums",
    "binary",
    "classification",
    "combine",
    "cross_entropy",
    "predicted",
    "regression",
    "spans",
    "tagging",
]
