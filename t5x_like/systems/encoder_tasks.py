"""The tasks of an encoder's heads for labelled text, the same for every system."""

from t5x_like.losses import task_losses
from t5x_like.systems.system import Task

ENCODER_TASKS: dict[str, Task] = {
    "classification": Task(loss=task_losses.classification, prediction="classes"),
    "regression": Task(loss=task_losses.regression, prediction="number"),
    "tagging": Task(loss=task_losses.tagging, prediction="tags"),
    "question_answering": Task(
        loss=task_losses.question_answering, prediction="answers", measures=("squad",)
    ),
}
