"""Training: the step, the loop, the train state, optimizers, schedules and metrics."""
