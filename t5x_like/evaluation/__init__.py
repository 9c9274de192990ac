"""What `evaluate` measures: each measure an object that declares what it needs."""
