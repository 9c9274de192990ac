"""Turn examples into arrays, with converters and packing; only NumPy is needed."""
