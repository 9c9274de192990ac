"""Examples to arrays: converters and packing, in NumPy alone."""
