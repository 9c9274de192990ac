"""Labelled text as examples: classes, numbers, tags, answers."""
