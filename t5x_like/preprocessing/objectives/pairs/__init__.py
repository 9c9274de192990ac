"""Objectives over pairs of texts: corrupted documents, translation, text to text, feedback."""
