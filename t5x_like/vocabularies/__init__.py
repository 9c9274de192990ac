"""Text to token ids and back."""

from t5x_like.vocabularies.files import (
    BYTES,
    EOS,
    PAD,
    SENTINELS,
    UNKNOWN,
    check_marks,
    load,
)

__all__ = ["BYTES", "EOS", "PAD", "SENTINELS", "UNKNOWN", "check_marks", "load"]
