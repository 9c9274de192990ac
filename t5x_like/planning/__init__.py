"""What a config needs and costs, told before it runs: by arithmetic, and by its compiled step."""
