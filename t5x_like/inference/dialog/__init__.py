"""Dialog models: rated and ranked candidate responses, and tools (Thoppilan et al. 2022)."""
