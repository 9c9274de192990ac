"""Evaluation: measures, each an object that declares the resources it needs."""
