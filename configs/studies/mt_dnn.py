"""MT-DNN at demo size: four tasks of PyGLUE together or each alone, and then a fifth one.

    python -m t5x_like.vocabulary --data=data/pyglue.py --kind=wordpiece --size=4096 \
        --output=runs/studies/pyglue_vocab.txt
    python -m t5x_like.study mt_dnn

Liu et al. 2019, section 4. Both arms begin with the same BERT. In `mt_dnn` it is
fine-tuned on four tasks in one run, in `bert` on each in a run of its own, as many epochs or more,
with the same heads. The fifth task, entailment, is learned from 0.1%, 1% and 10% of its training
rows with a linear head, from the shared encoder or from BERT. All numbers are of test rows.

| the paper | here |
|---|---|
| BERT large | 2 layers, 64 wide, 4,096 pieces; pretrained on documentation strings, 400 steps |
| nine tasks of GLUE | topic, similarity (300 rows), paraphrase, ranking |
| 5 epochs of all batches, Adamax, 5e-5 | 3 epochs, Adamax, 2e-3 |
| the domains SNLI and SciTail, after tasks that are like them | entailment |
"""

from typing import Any

from configs.mt_dnn import pyglue
from t5x_like.studies import Arm, Claim, Measure, Run, Study

_VOCABULARY = "runs/studies/pyglue_vocab.txt"
_LENGTH = 48
# The number of each task's measure, and the steps of a run of its own: 3 epochs, or at least 150.
_MEASURES = {
    "topic": ("accuracy", 150),
    "similarity": ("pearson", 150),
    "paraphrase": ("accuracy", 150),
    "ranking": ("accuracy", 189),
}
_TOGETHER = 3 * (38 + 10 + 36 + 63)
_FEW = {"entailment_0_1": 0.001, "entailment_1": 0.01, "entailment_10": 0.1}
_FEW_STEPS = 80


def _tasks() -> dict[str, Any]:
    """The tasks of the demo, measured on test rows."""
    return {
        name: task | {"evaluate": {"tasks": (f"pyglue_{name}_test",)}}
        for name, task in pyglue().items()
    }


def _run(tasks: dict[str, Any], steps: int) -> dict[str, Any]:
    return {"tasks": tasks, "train.steps": steps, **_measured(steps)}


def _measured(steps: int) -> dict[str, Any]:
    """Measured once, at the end."""
    return {
        "data.lengths": {"inputs": _LENGTH},
        "evaluate.every": steps,
        "evaluate.measures": {"loss": {}, "benchmark": {"every": steps}},
        "checkpoint.every": steps,
        "checkpoint.keep": 1,
    }


def _few(share: float) -> Run:
    changes = {
        **_measured(_FEW_STEPS),
        "train.steps": _FEW_STEPS,
        "data.batch_size": 16,
        "data.settings": {"share": share},
        "evaluate.tasks": ("pyglue_entailment_test",),
        "optimizer.learning_rate": 2e-3,
        "optimizer.name": "adamax",
    }
    return Run(config="configs/pyglue.py:entailment", changes=changes, starts_from="shared")


_PRETRAINING = {
    "train.phases": (),
    "phases": {},
    "train.steps": 400,
    "train.log_every": 100,
    "model.d_model": 64,
    "model.d_ff": 256,
    "data.module": "data/pyglue.py",
    "data.task": "pyglue_text",
    "data.vocabulary": _VOCABULARY,
    "data.lengths": {"inputs": _LENGTH},
    "evaluate.every": 0,
    "checkpoint.keep": 1,
}


def get_study() -> Study:
    """The study."""
    tasks = _tasks()
    together = Run(
        config="configs/mt_dnn.py:demo",
        changes=_run(tasks, _TOGETHER),
        starts_from="pretraining",
    )
    alone = {name: _run({name: tasks[name]}, steps) for name, (_, steps) in _MEASURES.items()}
    measures = {
        name: Measure(run=name, number=f"{name}/pyglue_{name}_test/benchmark/{metric}", scale=100.0)
        for name, (metric, _) in _MEASURES.items()
    }
    number = "pyglue_entailment_test/benchmark/accuracy"
    measures |= {name: Measure(run=name, number=number, scale=100.0) for name in _FEW}
    return Study(
        title="MT-DNN at demo size",
        source="Liu et al. 2019, section 4",
        runs={
            "pretraining": Run(config="configs/bert.py:demo", changes=_PRETRAINING),
            # Equal in the arm `mt_dnn`, where they are one run.
            **dict.fromkeys(("shared", *_MEASURES), together),
            **{name: _few(share) for name, share in _FEW.items()},
        },
        arms={"mt_dnn": Arm(), "bert": Arm(changes=alone, leaves_out=("shared",))},
        measures=measures,
        claims=tuple(
            Claim(
                text=f"MT-DNN is better than BERT: {name}.", measure=name, arm="mt_dnn", than="bert"
            )
            for name in measures
        ),
    )
