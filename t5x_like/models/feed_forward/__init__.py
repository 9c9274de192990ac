"""Feed-forward layers: dense, gated, and mixtures of experts."""
