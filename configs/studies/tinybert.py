r"""TinyBERT without each of its parts, at demo size: tables 2 and 3 of Jiao et al. 2019.

    ROWS=$(python -c "from data import pyglue_rows; print(pyglue_rows.folder())")/labelled
    mkdir -p runs/topic
    awk 'NR % 4 == 1' $ROWS/topic-train.jsonl > runs/topic/topic.jsonl
    cp $ROWS/topic-validation.jsonl runs/topic/validation.jsonl
    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 \
        --output=runs/bert_demo/vocab.txt
    python -m t5x_like.train --config=configs/bert.py:demo --config.workdir=runs/bert_4_layers \
        --config.model.layers=4 --config.model.d_model=64 --config.model.d_ff=256
    python -m t5x_like.train --config=configs/fine_tuning.py:classification \
        --config.initialize=runs/bert_4_layers --config.workdir=runs/tinybert_teacher \
        --config.data.settings.train=$ROWS/topic-train.jsonl \
        --config.data.settings.validation=runs/topic/validation.jsonl \
        --config.data.lengths.inputs=48 --config.train.steps=600 \
        --config.optimizer.learning_rate=1e-3
    python -m data.augment --input runs/topic/topic.jsonl --output runs/topic/augmented \
        --model runs/bert_4_layers --text text_a
    python -m t5x_like.study tinybert

| the paper | here |
|---|---|
| the teacher is BERT base, the student has 4 layers of width 312 | 4 layers of 64; 2 of 32 |
| Wikipedia, 3 epochs | documentation strings, 400 batches of 32 rows of 32 tokens |
| the average of four tasks of GLUE | the accuracy of PyGLUE's topic |
| teacher and student have the same rows | the student has 2,000 of the teacher's 8,000 |
| 20 copies of each row; 20 and 3 epochs | 20 copies; 300 and 200 batches of 32 rows |

A layer loss is left out only of task distillation, since all arms share the same general
distillation; the paper leaves it out of both. As in the paper, without the prediction loss the
student learns from the labels of the original rows. Without task distillation it learns from the
labels of the augmented rows, for as many steps.
"""

from typing import Any

from t5x_like.studies import Arm, Claim, OutcomeMeasure, Study, TrainingRun

_TEACHER = "runs/tinybert_teacher"
_LAYERS = ("attention", "hidden", "embedding")
_ORIGINAL = {"data.settings.train": "runs/topic/topic.jsonl"}
_FROM_LABELS = {**{f"loss.{name}": 0.0 for name in (*_LAYERS, "prediction")}, "loss.labels": 1.0}
_RUN = {"train.log_every": 100, "checkpoint.every": 0, "checkpoint.keep": 1}
_PART_2, _PART_3 = "Table 2: the stages", "Table 3: the losses"


def _arm(part: str, average: float, *, leaves_out: tuple[str, ...] = (), **changes: Any) -> Arm:
    return Arm(changes=changes, paper={"accuracy": average}, part=part, leaves_out=leaves_out)


def _without(loss: str, average: float) -> Arm:
    return _arm(_PART_3, average, intermediate={f"loss.{loss}": 0.0})


ARMS = {
    "tinybert": _arm(_PART_2, 75.6),
    "without_general": _arm(
        _PART_2,
        72.5,
        leaves_out=("general",),
        intermediate={"initialize": _TEACHER, "model.start": "random"},
    ),
    "without_task": _arm(_PART_2, 68.5, intermediate=_FROM_LABELS, prediction=_FROM_LABELS),
    "without_augmentation": _arm(_PART_2, 68.4, intermediate=_ORIGINAL, prediction=_ORIGINAL),
    "without_embedding": _without("embedding", 74.1),
    "without_prediction": _arm(_PART_3, 73.5, prediction={**_FROM_LABELS, **_ORIGINAL}),
    "without_attention": _without("attention", 71.0),
    "without_hidden": _without("hidden", 72.9),
}


def _better(text: str, than: str, arm: str = "tinybert") -> Claim:
    return Claim(text=text, measure="accuracy", arm=arm, than=than)


CLAIMS = (
    _better("General distillation helps (4.5.1).", "without_general"),
    _better("Task distillation helps.", "without_task"),
    _better("Data augmentation helps.", "without_augmentation"),
    _better("The embeddings' loss helps (4.5.2).", "without_embedding"),
    _better("The predictions' loss helps.", "without_prediction"),
    _better("The attention's loss helps.", "without_attention"),
    _better("The hidden states' loss helps.", "without_hidden"),
    _better("Attention matters more than hidden states.", "without_attention", "without_hidden"),
)

_STEP = {
    **_RUN,
    "data.settings.train": "runs/topic/augmented/topic.jsonl",
    "data.lengths": {"inputs": 32},
    "evaluate.batches": 0,
}
RUNS = {
    "general": TrainingRun(
        config="configs/tinybert.py:demo",
        changes={
            **_RUN,
            "initialize": "runs/bert_4_layers",
            "train.steps": 400,
            "data.lengths": {"inputs": 32},
            "evaluate.every": 0,
            "evaluate.batches": 1,
        },
    ),
    "intermediate": TrainingRun(
        config=f"configs/tinybert.py:intermediate:{_TEACHER}",
        changes={
            **_STEP,
            "train.steps": 300,
            "optimizer.learning_rate": 1e-3,
            "evaluate.every": 0,
            "evaluate.batches": 1,
        },
        starts_from="general",
    ),
    "prediction": TrainingRun(
        config=f"configs/tinybert.py:prediction:{_TEACHER}",
        changes={
            **_STEP,
            "train.steps": 200,
            "optimizer.learning_rate": 1e-3,
            "evaluate.every": 200,
        },
        starts_from="intermediate",
    ),
}


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="TinyBERT without its parts at demo size",
        source="Jiao et al. 2019, tables 2 and 3",
        runs=RUNS,
        arms=ARMS,
        measures={
            "accuracy": OutcomeMeasure(
                run="prediction",
                number="labelled_files/labels/accuracy",
                scale=100.0,
                in_paper="four tasks of GLUE",
            )
        },
        claims=CLAIMS,
    )
