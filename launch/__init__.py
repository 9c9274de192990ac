"""Scripts that start runs on rented or shared machines, and serve models."""
