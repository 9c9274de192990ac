"""Feed-forward layers, dense and sparse."""
