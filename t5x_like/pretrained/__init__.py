"""Load a pretrained model from a folder, run it, generate with it and save it."""

from t5x_like.pretrained.encoder_model import PretrainedEncoder
from t5x_like.pretrained.loading import from_pretrained
from t5x_like.pretrained.model import ModelOutput, Pretrained

__all__ = ["ModelOutput", "Pretrained", "PretrainedEncoder", "from_pretrained"]
