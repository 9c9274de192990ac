"""Blocks: one layer, and stacks of layers."""
