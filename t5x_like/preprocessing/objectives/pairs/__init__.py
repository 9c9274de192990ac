"""Objectives of encoder-decoders over pairs of texts: corrupted documents, translation."""
