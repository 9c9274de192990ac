"""Text to batches without TensorFlow: grain reads documents, NumPy makes examples from them."""
