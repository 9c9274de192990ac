"""Flax modules that two papers or more share: attention, feed-forward layers, blocks, networks."""
