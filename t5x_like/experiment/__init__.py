"""A config made into the two sides of a run: its model and its data."""
