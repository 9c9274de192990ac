"""Flax modules that systems assemble: attention, feed-forward layers, blocks, networks, heads."""
