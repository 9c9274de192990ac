"""The tasks of an encoder's heads for labelled text, which all systems share."""

from functools import partial

from t5x_like.losses import fine_tuning
from t5x_like.systems.system import Task

ENCODER_TASKS: dict[str, Task] = {
    "classification": Task(
        loss=partial(fine_tuning.loss, "classification"),
        prediction="classes",
        measures=("predictions",),
    ),
    "multiple_choice": Task(
        loss=partial(fine_tuning.loss, "multiple_choice"),
        prediction="encoder_choices",
        measures=("predictions",),
    ),
    "regression": Task(
        loss=partial(fine_tuning.loss, "regression"),
        prediction="number",
        measures=("predictions",),
    ),
    "tagging": Task(
        loss=partial(fine_tuning.loss, "tagging"),
        prediction="tags",
        measures=("predictions",),
    ),
    "question_answering": Task(
        loss=partial(fine_tuning.loss, "question_answering"),
        prediction="answers",
        measures=("squad",),
    ),
}
