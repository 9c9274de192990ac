"""Heads, which map hidden states to the outputs of a task."""
