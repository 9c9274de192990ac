"""Paper to model: one short file per system."""
