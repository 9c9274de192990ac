"""Measures of whole examples, where a mean over tokens does not tell."""
