"""Weights from and for Hugging Face: folders in, folders out, and a model to call in between."""

from t5x_like.hf.encoders import PretrainedEncoder
from t5x_like.hf.loading import from_pretrained
from t5x_like.hf.pretrained import ModelOutput, Pretrained

__all__ = ["ModelOutput", "Pretrained", "PretrainedEncoder", "from_pretrained"]
