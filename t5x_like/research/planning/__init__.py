"""Planning of a run: memory, FLOPs and time, by arithmetic and by compiling the step."""
