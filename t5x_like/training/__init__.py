"""From a batch to a step: losses, metrics, schedules, optimizers, the train state and the step."""
