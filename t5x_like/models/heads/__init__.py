"""Heads: what maps hidden states to the outputs of a task."""
