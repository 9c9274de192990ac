"""Text to batches without TensorFlow: grain reads documents, NumPy makes the examples of them."""
