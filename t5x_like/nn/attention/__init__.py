"""Attention: cores, masks, key-value caches, and positions in queries, keys and scores."""
