"""Hugging Face's folders: their files, and the parts of a system's `HuggingFaceFormat`."""
