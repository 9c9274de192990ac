"""Objectives over labelled text: classes, numbers, tags, answers."""
