"""Blocks (single layers) and stacks of layers."""
