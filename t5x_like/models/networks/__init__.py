"""Whole networks from parts."""
