"""MT-DNN at demo size: four tasks of PyGLUE together or separately, and then a fifth task.

    python -m t5x_like.study mt_dnn

Liu et al. 2019, section 4. All runs start from the same BERT. In the arm `mt_dnn` it is fine-tuned
on four tasks in one run; in `bert`, on each task in a separate run, for as many epochs or more,
with the same heads. In `mt_dnn_fine_tuned`, the paper's main setting, the shared run is followed by
a run for each task, which equals the run of `bert` but starts from the encoder and head of the
shared run, so that it has seen the task's rows twice as often. The fifth task, entailment, is
learned from 0.1%, 1% and 10% of its training rows with a linear head, from the shared encoder or
from BERT. All numbers are measured on test rows.

| the paper | here |
|---|---|
| BERT large | 4 layers, 64 wide, 4,096 pieces; pretrained on documentation strings, 1,500 steps |
| nine tasks of GLUE | topic, similarity (300 rows), paraphrase, ranking |
| 5 epochs of all batches, Adamax, 5e-5 | 3 epochs, Adamax, 2e-3 |
| the domains SNLI and SciTail, after similar tasks | entailment |
"""

from typing import Any

from configs.mt_dnn import pyglue
from t5x_like.studies import Arm, Claim, OutcomeMeasure, Study, TrainingRun

_BERT = {"initialize": "runs/small_bert"}
_NETWORK = {
    "data.vocabulary": "runs/bert_demo/vocab.txt",
    "model.vocab_size": 4096,
    "model.positions": 128,
    "model.token_types": 2,
    "model.layers": 4,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.heads": 4,
    "model.dtype": "float32",
}
_LENGTH = {"data.lengths": {"inputs": 48}}
# Metric of each task, and steps of a separate run: 3 epochs, but at least 150.
_MEASURES = {
    "topic": ("accuracy", 225),
    "similarity": ("pearson", 150),
    "paraphrase": ("accuracy", 216),
    "ranking": ("accuracy", 189),
}
_TOGETHER = 3 * (75 + 10 + 72 + 63)
_FEW = {"entailment_0_1": 0.001, "entailment_1": 0.01, "entailment_10": 0.1}
_FEW_STEPS = 120
_TUNED = "mt_dnn_fine_tuned"


def _tasks() -> dict[str, Any]:
    """Return the tasks of the demo, evaluated on test rows."""
    return {
        name: task | {"evaluate": {"tasks": (f"pyglue_{name}_test",)}}
        for name, task in pyglue().items()
    }


def _steps(steps: int) -> dict[str, Any]:
    """Return settings of a run that is measured once, at its end."""
    return {
        "train.steps": steps,
        "evaluate.every": steps,
        "evaluate.batches": 0,
        "evaluate.measures": {"loss": {}, "benchmark": {"every": steps}},
        "checkpoint.every": steps,
        "checkpoint.keep": 1,
    }


def _few(share: float) -> TrainingRun:
    changes = {
        **_LENGTH,
        **_steps(_FEW_STEPS),
        "model.dropout": 0.1,
        "data.batch_size": 16,
        "data.settings": {"share": share},
        "evaluate.tasks": ("pyglue_entailment_test",),
        "optimizer.name": "adamax",
        "optimizer.learning_rate": 2e-3,
    }
    return TrainingRun(config="configs/pyglue.py:entailment", changes=changes, starts_from="shared")


_NEEDS = {
    "runs/bert_demo/vocab.txt": (
        "t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 "
        "--output=runs/bert_demo/vocab.txt"
    ),
    "runs/small_bert/checkpoints/1500": (
        "t5x_like.train --config=configs/bert.py:demo --config.workdir=runs/small_bert "
        "--config.model.layers=4 --config.model.d_model=64 --config.model.d_ff=256"
    ),
}


def _numbers() -> dict[str, str]:
    """Return {run: the number that it is compared by}."""
    numbers = {
        name: f"{name}/pyglue_{name}_test/benchmark/{metric}"
        for name, (metric, _) in _MEASURES.items()
    }
    return numbers | dict.fromkeys(_FEW, "pyglue_entailment_test/benchmark/accuracy")


def get_study() -> Study:
    """Return the study."""
    tasks = _tasks()
    together = TrainingRun(
        config="configs/mt_dnn.py:demo",
        changes={**_BERT, **_NETWORK, **_LENGTH, **_steps(_TOGETHER), "tasks": tasks},
    )
    alone = {
        name: {**_steps(steps), "tasks": {name: tasks[name]}}
        for name, (_, steps) in _MEASURES.items()
    }
    numbers = _numbers()
    better = [
        *(("Better than BERT", name, "mt_dnn", "bert") for name in numbers),
        *(("Fine-tuned: better than BERT", name, _TUNED, "bert") for name in _MEASURES),
        *(("Fine-tuning helps", name, _TUNED, "mt_dnn") for name in _MEASURES),
    ]
    return Study(
        title="MT-DNN at demo size",
        source="Liu et al. 2019, section 4",
        needs=_NEEDS,
        runs={
            # All equal, so that they are a single run in the arm `mt_dnn`.
            **dict.fromkeys(("shared", *_MEASURES), together),
            **{name: _few(share) for name, share in _FEW.items()},
        },
        arms={
            "mt_dnn": Arm(),
            "bert": Arm(changes={**alone, **dict.fromkeys(_FEW, _BERT)}, leaves_out=("shared",)),
            _TUNED: Arm(changes=alone, starts_from=dict.fromkeys(_MEASURES, "shared")),
        },
        measures={
            name: OutcomeMeasure(run=name, number=number, scale=100.0)
            for name, number in numbers.items()
        },
        claims=tuple(
            Claim(text=f"{text}: {name}.", measure=name, arm=arm, than=than)
            for text, name, arm, than in better
        ),
    )
