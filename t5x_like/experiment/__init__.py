"""The two sides of a run, built from a config: its model and its data."""
