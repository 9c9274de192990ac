"""Plan a run before it starts: memory, FLOPs and time, by arithmetic and by compiling the step."""
