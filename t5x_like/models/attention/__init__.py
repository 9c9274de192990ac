"""Attention: cores, masks, caches, positions that act on queries and keys."""
