"""Losses, as sums and weights: on tokens, labels, a teacher's outputs and preferences."""

from t5x_like.losses import (
    autoregressive,
    distillation,
    fine_tuning,
    masked_lm,
    preferences,
)
from t5x_like.losses.labels import (
    binary,
    classification,
    real_rows,
    regression,
    spans,
    tagging,
)
from t5x_like.losses.masked_lm import MaskedTokens, predict_masked, sentence_pairs
from t5x_like.losses.sums import LossSums, combine, forward, weighted_sum
from t5x_like.losses.token_cross_entropy import cross_entropy, log_probs

__all__ = [
    "LossSums",
    "MaskedTokens",
    "autoregressive",
    "binary",
    "classification",
    "combine",
    "cross_entropy",
    "distillation",
    "fine_tuning",
    "forward",
    "log_probs",
    "masked_lm",
    "predict_masked",
    "preferences",
    "real_rows",
    "regression",
    "sentence_pairs",
    "spans",
    "tagging",
    "weighted_sum",
]
