"""Token and position embeddings, and output layers to logits."""
