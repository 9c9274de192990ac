"""Tokenizers of folders in Hugging Face's format."""
