"""Decoding: greedy, sampling, streaming and beam search over an explicit cache."""

from t5x_like.decoding.beam import Beams, GoogleNMTPenalty, PowerPenalty, beam_search
from t5x_like.decoding.filters import (
    Forbid,
    Force,
    MinNewTokens,
    NoRepeatNgrams,
    Progress,
    Temperature,
    TopK,
    TopP,
    VocabularySize,
    greedy,
    make_filters,
    sample,
)
from t5x_like.decoding.generation import Generated, StreamStep, generate, stream

__all__ = [
    "Beams",
    "Forbid",
    "Force",
    "Generated",
    "GoogleNMTPenalty",
    "MinNewTokens",
    "NoRepeatNgrams",
    "PowerPenalty",
    "Progress",
    "StreamStep",
    "Temperature",
    "TopK",
    "TopP",
    "VocabularySize",
    "beam_search",
    "generate",
    "greedy",
    "make_filters",
    "sample",
    "stream",
]
