"""Inference: generated text, scores and labels for texts."""
