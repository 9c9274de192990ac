"""LaMDA's comparison at demo size: pretrained, fine-tuned, with ranking, with tools; two sizes.

    python -m t5x_like.study lamda_dialogs --plan
    python -m t5x_like.study lamda_dialogs --until_decided

Thoppilan et al. 2022, figures 4 and 5: a larger size without fine-tuning raises quality, but
neither safety nor groundedness; fine-tuning and ranking raise all three at every size; facts that a
model has not seen come from tools. Dialogs and labels are generated (data/generated_dialogs.py); no
training dialog has the answers to the held-out questions.

| the paper | here |
|---|---|
| 2B, 8B and 137B parameters | 64 wide with 2 layers, 128 wide with 3 layers |
| dialogs and web text | 20,000 generated dialogs, a fifth of whose responses is unsafe |
| dialogs annotated by people | 3,000 with labels by rules, and 1,500 with research |
| pretrained, without further training | trained on dialogs without annotations for as many steps |
| replies rated by people | 200 held-out questions, and 200 about persons only in the store |

The replies of `pretrained` and `fine_tuned` are single samples; `ranked` has the best of 16, and
`tools` does research, too. The last three arms share their training. Three points, six of the 200
questions, do not matter.
"""

from collections.abc import Iterator
from typing import Any

from t5x_like.research.studies import Arm, Claim, OutcomeMeasure, Study, TrainingRun

_SIZES: dict[str, dict[str, Any]] = {
    "small": {"model.layers": 2, "model.d_model": 64, "model.d_ff": 256, "model.head_width": 16},
    "large": {"model.layers": 3, "model.d_model": 128, "model.d_ff": 512, "model.head_width": 32},
}
_MARGIN = 3.0
_ONE = {"candidates": 1, "unsafe_above": 1.0}
_RANKED = {"candidates": 16}
_TOOLS = {**_RANKED, "retrieval": "runs/generated_dialogs/facts.jsonl"}

# One step at this rate changes no parameter: the run only measures the model's replies.
_REPLIES = {
    "train.steps": 1,
    "evaluate.every": 1,
    "optimizer": {"name": "adafactor", "schedule": "constant", "learning_rate": 1e-20},
}
# The pretrained model continues for as many steps, on responses of all kinds without ratings.
_UNRATED = {"data.settings": {"parts": ("generation",), "responses": "all"}}


def _replies(dialog: dict[str, Any]) -> dict[str, Any]:
    return {"evaluate.measures": {"loss": {}, "replies": {"every": 1, "dialog": dialog}}}


_ARMS: dict[str, dict[str, Any]] = {
    "pretrained": {"fine_tuning": _UNRATED, "replies": _replies(_ONE)},
    "fine_tuned": {"replies": _replies(_ONE)},
    "ranked": {"replies": _replies(_RANKED)},
    "tools": {"replies": _replies(_TOOLS)},
}


def _number(task: str, name: str) -> OutcomeMeasure:
    number = f"generated_dialogs_{task}/replies/{name}"
    return OutcomeMeasure(run="replies", number=number, scale=100.0)


def _better(text: str, measure: str, arm: str, than: str) -> Claim:
    return Claim(text=text, measure=measure, arm=arm, than=than, margin=_MARGIN)


def _claims() -> Iterator[Claim]:
    for size in _SIZES:
        pretrained, fine_tuned, ranked, tools = (f"{size}_{arm}" for arm in _ARMS)
        for name in ("sensibleness", "specificity", "safety"):
            text = f"{size}: fine-tuning raises {name}"
            yield _better(text, name, fine_tuned, pretrained)
            text = f"{size}: ranking raises {name}"
            yield _better(text, name, ranked, fine_tuned)
        yield _better(f"{size}: tools raise groundedness", "groundedness", tools, ranked)
    sizes = "large_pretrained", "small_pretrained"
    yield _better("Size alone raises sensibleness", "sensibleness", *sizes)
    for name in ("safety", "groundedness"):
        text = f"Size alone makes no difference to {name}"
        arm, than = sizes
        yield Claim(text=text, measure=name, arm=arm, than=than, within=_MARGIN)


_NEEDS = {
    "runs/generated_dialogs/facts.jsonl": (
        "data.generated_dialogs --output=runs/generated_dialogs"
    ),
    "runs/generated_dialogs/vocabulary.model": (
        "t5x_like.vocabulary --data=data/generated_dialogs.py --size=152 --whole_words "
        "0 1 RESPONSE SENSIBLE SPECIFIC INTERESTING UNSAFE TURN BASE RESEARCH RESULT "
        "--output=runs/generated_dialogs/vocabulary.model"
    ),
}


def get_study() -> Study:
    """Return the study."""
    measures = {
        name: _number("questions", name)
        for name in ("sensibleness", "specificity", "interestingness", "safety")
    }
    measures |= {
        name: _number("facts", name)
        for name in ("groundedness", "informativeness", "citation_accuracy")
    }
    return Study(
        title="LaMDA's fine-tuning, ranking and tools",
        source="Thoppilan et al. 2022, figures 4 and 5",
        needs=_NEEDS,
        runs={
            "pretraining": TrainingRun(config="configs/lamda_dialogs.py:demo_pretraining"),
            "fine_tuning": TrainingRun(
                config="configs/lamda_dialogs.py:demo",
                changes={"evaluate.measures": {"loss": {}}},
                starts_from="pretraining",
            ),
            "replies": TrainingRun(
                config="configs/lamda_dialogs.py:demo", changes=_REPLIES, starts_from="fine_tuning"
            ),
        },
        arms={
            f"{size}_{arm}": Arm(changes={"pretraining": network, **changes}, part=size)
            for size, network in _SIZES.items()
            for arm, changes in _ARMS.items()
        },
        measures=measures,
        claims=tuple(_claims()),
        seeds=(0, 1, 2),
    )
