"""Hugging Face's formats: folders, weight names, settings."""
