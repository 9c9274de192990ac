"""Text in, text or labels out."""
