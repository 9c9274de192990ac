"""The relation of loss to parameters, tokens and compute: laws fitted to runs, and runs to fit."""
