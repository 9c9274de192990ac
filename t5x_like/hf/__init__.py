"""Weights from and for Hugging Face: folders in, folders out, and a model to call in between."""

from t5x_like.hf.pretrained import ModelOutput, Pretrained, from_pretrained

__all__ = ["ModelOutput", "Pretrained", "from_pretrained"]
