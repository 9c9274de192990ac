"""Tokens and positions as vectors, and vectors as logits."""
