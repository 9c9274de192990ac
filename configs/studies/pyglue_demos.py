"""The results of the demos of BERT, GPT and T5 on the test rows of PyGLUE, after fine-tuning.

    python -m t5x_like.study pyglue_demos:bert --processes=2

The argument is `bert`, `gpt` or `t5`, whose demo is in runs/bert_demo, runs/gpt_demo or runs/demo
(`make demo`). BERT and GPT are fine-tuned on each task in a separate run, with a head; T5 on all
tasks in one run, as text (configs/pyglue.py). The study has three seeds; docs/pyglue.md has the
results of one seed (`--seeds=0`), beside a constant, a bag of words and a rule.
"""

from configs.pyglue import GPT_KINDS, KINDS
from t5x_like.names import choose
from t5x_like.research.studies import Arm, OutcomeMeasure, Study, TrainingRun

_NEEDS = {
    "runs/bert_demo/vocab.txt": (
        "t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 "
        "--output=runs/bert_demo/vocab.txt"
    ),
    "runs/bert_demo/checkpoints/1500": "t5x_like.train --config=configs/bert.py:demo",
}
_FOLDERS = {"bert": "runs/bert_demo", "gpt": "runs/gpt_demo", "t5": "runs/demo"}
_NUMBERS = {
    "acceptability": ("matthews",),
    "topic": ("accuracy",),
    "similarity": ("pearson", "spearman"),
    "paraphrase": ("accuracy", "f1_binary"),
    "entailment": ("accuracy",),
    "span": ("exact_match", "f1"),
    "continuation": ("accuracy",),
    "ranking": ("accuracy", "mean_reciprocal_rank"),
}
_TEXT_NUMBERS = _NUMBERS | {"ranking": ("f1_binary",), "summary": ("rouge_1", "rouge_l")}
_EVERY = 2**20  # measured once, at the last step


def _run(config: str, folder: str, tasks: tuple[str, ...]) -> TrainingRun:
    """Return a run that fine-tunes the folder and is measured on all test rows of the tasks."""
    changes = {
        "initialize": folder,
        "evaluate.tasks": tuple(f"pyglue_{task}_test" for task in tasks),
        "evaluate.measures": {"benchmark": {"every": _EVERY}},
        "evaluate.averages": {},
        "evaluate.batches": 0,
        "evaluate.every": _EVERY,
    }
    return TrainingRun(config=f"configs/pyglue.py:{config}", changes=changes)


def get_study(system: str = "bert") -> Study:
    """Return the study of one demo."""
    choose("the demo after the colon", system, _FOLDERS)
    folder = _FOLDERS[system]
    if system == "t5":
        numbers = _TEXT_NUMBERS
        together = _run("text", folder, tuple(numbers))
        runs = dict.fromkeys(numbers, together)
    else:
        prefix = {"bert": "", "gpt": "gpt_"}[system]
        known = {**KINDS, **GPT_KINDS}
        numbers = {task: _NUMBERS[task] for task in KINDS if prefix + task in known}
        runs = {task: _run(prefix + task, folder, (task,)) for task in numbers}
    return Study(
        title=f"The demo of {system} on PyGLUE",
        source="No paper",
        needs=_NEEDS if system == "bert" else {},
        runs=runs,
        arms={system: Arm()},
        measures={
            f"{task}_{metric}": OutcomeMeasure(
                run=task, number=f"pyglue_{task}_test/benchmark/{metric}", scale=100.0
            )
            for task, metrics in numbers.items()
            for metric in metrics
        },
        text="natural",
    )
