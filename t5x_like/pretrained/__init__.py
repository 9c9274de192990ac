"""A model read from a folder, to call, to generate with and to save."""

from t5x_like.pretrained.encoder_model import PretrainedEncoder
from t5x_like.pretrained.loading import from_pretrained
from t5x_like.pretrained.model import ModelOutput, Pretrained

__all__ = ["ModelOutput", "Pretrained", "PretrainedEncoder", "from_pretrained"]
