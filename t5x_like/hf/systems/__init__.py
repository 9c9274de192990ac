"""The record of each system that Hugging Face has, or whose weights it can store: `FORMAT`."""
