"""A grid of learning rates, batches and seeds for fine-tuning any encoder on a task of PyGLUE.

    python -m t5x_like.study fine_tuning_grid:topic --config.initialize=runs/bert_demo --plan
    python -m t5x_like.study fine_tuning_grid:topic --config.initialize=runs/bert_demo

The argument is a task of configs/pyglue.py. The best rate and batch have the largest median over
five seeds on the validation rows; their median on the test rows is reported.

| Liu et al. 2019, section 5.1 and table 10 | here |
|---|---|
| rate 1e-5, 2e-5, 3e-5 | 3e-5, 1e-4, 3e-4: a demo is small |
| batch 16, 32 | the same |
| 10 epochs, early stop | 3 epochs of 8,000 rows, as configs/pyglue.py |
| median over five seeds, of the development set | of validation rows, and of test rows |

Flags such as `--config.train.steps=300` change settings of all runs. For a grid of another config,
write a short file like this (docs/studies.md).
"""

from configs.pyglue import KINDS
from t5x_like.names import choose
from t5x_like.research.studies import Arm, OutcomeMeasure, Study, TrainingRun, grid

# The metric of each task by which arms are compared.
_NUMBERS = {
    "acceptability": "matthews",
    "topic": "accuracy",
    "similarity": "pearson",
    "paraphrase": "accuracy",
    "entailment": "accuracy",
    "span": "f1",
    "continuation": "accuracy",
    "ranking": "mean_reciprocal_rank",
}
_EVERY = 2**20  # evaluated once, at the last step


def _arms() -> dict[str, Arm]:
    """Return the arms: three rates for each batch, each trained for 3 epochs."""
    arms: dict[str, Arm] = {}
    for batch in (16, 32):
        settings = {
            "optimizer.learning_rate": (3e-5, 1e-4, 3e-4),
            "data.batch_size": (batch,),
            "train.steps": (3 * 8_000 // batch,),
        }
        arms |= grid("fine_tuning", settings)
    return arms


def get_study(task: str = "topic") -> Study:
    """Return the study of one task."""
    choose("the task after the colon", task, KINDS)
    data = f"pyglue_{task}"
    changes = {
        "evaluate.tasks": (data, f"{data}_test"),
        "evaluate.measures": {"benchmark": {"every": _EVERY}},
        "evaluate.batches": 0,
        "evaluate.every": _EVERY,
    }

    def measure(rows: str) -> OutcomeMeasure:
        return OutcomeMeasure(
            run="fine_tuning", number=f"{rows}/benchmark/{_NUMBERS[task]}", scale=100.0
        )

    return Study(
        title=f"Rates and batches of fine-tuning on {data}",
        source="Grid as in Liu et al. 2019, table 10",
        runs={"fine_tuning": TrainingRun(config=f"configs/pyglue.py:{task}", changes=changes)},
        arms=_arms(),
        measures={"validation": measure(data), "test": measure(f"{data}_test")},
        seeds=(0, 1, 2, 3, 4),
        center="median",
        best_by="validation",
        text="natural",
    )
