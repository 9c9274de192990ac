"""Scaling laws of loss, parameters, tokens and compute: the laws, their fits, runs to fit."""
