"""The tasks of an encoder's heads for labelled text, the same for every system."""

from t5x_like.losses import fine_tuning
from t5x_like.systems.system import Task

ENCODER_TASKS: dict[str, Task] = {
    "classification": Task(loss=fine_tuning.classification, prediction="classes"),
    "regression": Task(loss=fine_tuning.regression, prediction="number"),
    "tagging": Task(loss=fine_tuning.tagging, prediction="tags"),
    "question_answering": Task(
        loss=fine_tuning.question_answering, prediction="answers", measures=("squad",)
    ),
}
