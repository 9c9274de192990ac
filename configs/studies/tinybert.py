r"""TinyBERT without each of its parts, on generated homonyms: tables 2 and 3 of Jiao et al. 2019.

    python -m t5x_like.study tinybert --plan
    python -m t5x_like.study tinybert

The first time, it also trains the teacher, a BERT pretrained on the language `homonyms` and
fine-tuned on its task `fields` (docs/languages.md): which of 8 fields a sentence of three words is
from. It writes and augments the student's rows (`data.generators.augment`).

| the paper | here |
|---|---|
| the teacher is BERT base, the student has 4 layers of width 312 | 4 layers of 128; 2 of 32 |
| Wikipedia, 3 epochs | 20,000 generated documents, 100 batches of 32 rows of 32 tokens |
| the average of four tasks of GLUE | accuracy on `fields`; a constant 12.5%, the ceiling 100% |
| teacher and student have the same rows | the student has 32 of the teacher's 2,000 |
| 20 copies of each row; 20 and 3 epochs | 20 copies; 150 and 150 batches of 32 rows |

A layer loss is left out only of task distillation, since all arms share the same general
distillation; the paper leaves it out of both. As in the paper, without the prediction loss the
student learns from the labels of the original rows. Without task distillation it learns from the
labels of the augmented rows, for as many steps. Two points of accuracy do not matter.

On PyGLUE's topic, with a teacher at 57%, seven of the eight claims could not be told apart: the
augmented rows were read for less than half an epoch. Here three designs were tried with one seed
before this one, all with 64 rows and 8 candidates for a word. With 400 batches of general
distillation, and 300 and 200 or 60 and 60 of task distillation, all arms of table 2 but
`without_general` reached 100%. With 100, 60 and 60, TinyBERT reached 65%, without task distillation
90%, and without augmentation 74%: the opposite of two claims. This design has more batches and
fewer rows, chosen after that, so its verdicts on these two claims depend on both numbers.
"""

from typing import Any

from t5x_like.research.studies import (
    Arm,
    Claim,
    GeneratedText,
    Learned,
    OutcomeMeasure,
    Study,
    TrainingRun,
)

_TEXT = GeneratedText(language="homonyms", kind="albert", size=140)
BERT, _TEACHER = "runs/studies/homonyms_bert", "runs/studies/homonyms_fields"
_ALL, _FEW, _AUGMENTED = (f"{_TEACHER}_{name}" for name in ("rows", "few_rows", "augmented_rows"))
_TEACHER_STEPS = 300
_SIZES = {
    "model.layers": 4,
    "model.vocab_size": _TEXT.size,
    "model.initializer_range": 0.05,  # 0.02 * (768 / 128)^0.5
}
# Also of the study distilbert_losses.
BERT_NEEDS = {
    **_TEXT.needs,
    **_TEXT.pretrained(
        "configs/bert.py:demo",
        BERT,
        steps=1000,
        changes={
            **_SIZES,
            "train.phases": (),
            "phases": {},
            "model.head": "masked_lm",
            "data.objective_settings.next_sentence": False,
            "data.lengths.inputs": 32,
        },
    ),
}
_NEEDS = {
    **BERT_NEEDS,
    f"{_ALL}/train.jsonl": (
        f"data.generators.language_rows homonyms fields documents=2000 around=1 --output={_ALL}"
    ),
    f"{_FEW}/train.jsonl": (
        f"data.generators.language_rows homonyms fields documents=32 around=1 --output={_FEW}"
    ),
    f"{_TEACHER}/checkpoints/{_TEACHER_STEPS}": (
        "t5x_like.train --config=configs/fine_tuning.py:classification "
        f"--config.initialize={BERT} --config.workdir={_TEACHER} "
        f"--config.data.settings.train={_ALL}/train.jsonl "
        f"--config.data.settings.validation={_ALL}/validation.jsonl "
        f"--config.data.lengths.inputs=16 --config.train.steps={_TEACHER_STEPS} "
        "--config.optimizer.learning_rate=3e-4"
    ),
    f"{_AUGMENTED}/train.jsonl": (
        f"data.generators.augment --input {_FEW}/train.jsonl --output {_AUGMENTED} --model {BERT} "
        "--text text_a"
    ),
}

_LAYERS = ("attention", "hidden", "embedding")
_ORIGINAL = {"data.settings.train": f"{_FEW}/train.jsonl"}
_FROM_LABELS = {**{f"loss.{name}": 0.0 for name in (*_LAYERS, "prediction")}, "loss.labels": 1.0}
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
    return Claim(text=text, measure="accuracy", arm=arm, than=than, margin=2.0)


CLAIMS = (
    _better("General distillation helps (4.5.1).", "without_general"),
    _better("Task distillation helps.", "without_task"),
    _better("Data augmentation helps.", "without_augmentation"),
    _better("The embeddings' loss helps (4.5.2).", "without_embedding"),
    _better("The predictions' loss helps.", "without_prediction"),
    _better("The attention's loss helps.", "without_attention"),
    _better("The hidden states' loss helps.", "without_hidden"),
    # The paper's student without the attention's loss is the worst of table 3.
    _better("Attention matters more than hidden states.", "without_attention", "without_hidden"),
)

_RUN = {
    "train.log_every": 20,
    "checkpoint.every": 0,
    "checkpoint.keep": 1,
    "model.initializer_range": 0.1,  # 0.02 * (768 / 32)^0.5
}
_STEP = {
    **_RUN,
    "data.settings.train": f"{_AUGMENTED}/train.jsonl",
    "data.lengths": {"inputs": 16},
    "optimizer.learning_rate": 1e-3,
    "evaluate.batches": 0,
}
RUNS = {
    "general": TrainingRun(
        config="configs/tinybert.py:demo",
        changes={
            **_RUN,
            **_TEXT.changes(),
            "initialize": BERT,
            "model.vocab_size": _TEXT.size,
            **{name.replace("model.", "model.teacher."): value for name, value in _SIZES.items()},
            "model.teacher.head": "masked_lm",  # it has no pooler
            "model.teacher.d_model": 128,
            "model.teacher.d_ff": 512,
            "train.steps": 100,
            "evaluate.every": 0,
            "evaluate.batches": 1,
        },
    ),
    "intermediate": TrainingRun(
        config=f"configs/tinybert.py:intermediate:{_TEACHER}",
        changes={**_STEP, "train.steps": 150, "evaluate.every": 0, "evaluate.batches": 1},
        starts_from="general",
    ),
    "prediction": TrainingRun(
        config=f"configs/tinybert.py:prediction:{_TEACHER}",
        changes={**_STEP, "train.steps": 150, "evaluate.every": 150},
        starts_from="intermediate",
    ),
}


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="TinyBERT without its parts",
        source="Jiao et al. 2019, tables 2 and 3",
        needs=_NEEDS,
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
        learned=(Learned(arm="tinybert", measure="accuracy", than=12.5, what="a constant"),),
        claims=CLAIMS,
    )
