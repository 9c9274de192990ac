"""Inspection of a model's computations for a text: the numbers, and the server of the page."""
