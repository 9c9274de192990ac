"""Vocabularies: text to token ids and back. Nothing here needs TensorFlow."""

from t5x_like.vocabularies.base import Vocabulary
from t5x_like.vocabularies.files import BYTES, SENTINELS, load
from t5x_like.vocabularies.sentence_piece import EOS, PAD, UNKNOWN
from t5x_like.vocabularies.special_tokens import SpecialTokenVocabulary, check_special_tokens

__all__ = [
    "BYTES",
    "EOS",
    "PAD",
    "SENTINELS",
    "UNKNOWN",
    "SpecialTokenVocabulary",
    "Vocabulary",
    "check_special_tokens",
    "load",
]
