"""The format (`FORMAT`) of each system that Hugging Face has, or whose weights it can store."""
