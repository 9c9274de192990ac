"""The ALBERT paper's comparison of sentence objectives, with the same n-gram masks.

    python -m t5x_like.study albert_sentences

Lan et al. 2019, section 4.6, the intrinsic tasks of table 5: the accuracy of masked tokens, of next
sentences and of the order of sentences, after pretraining with neither objective, with one, or with
the other. The downstream tasks of the table are left out.

| the paper | here |
|---|---|
| 12 million parameters, 12 layers | 2 layers with one set of parameters, 128 wide |
| 4,096 rows of 512 tokens, 125,000 batches | 16 rows of 48 tokens, 3,000 batches |
| books and Wikipedia, 30,000 pieces | sentences of documentation, 4,096 pieces |
| not given: how an arm is measured on pairs | new heads are trained, on a frozen network |

Masked tokens are predicted in the rows of the pretraining, which are pairs or single segments. 68%
of the held-out next-sentence pairs are random, since short documents have no next sentence.
"""

from typing import Any

from t5x_like.studies import Arm, Claim, OutcomeMeasure, Study, TrainingRun

_SHORT: dict[str, Any] = {
    "train.log_every": 100,
    "checkpoint.keep": 1,
    "evaluate.every": 0,
    "evaluate.batches": 0,
}


def _objective(sentences: str) -> dict[str, Any]:
    return {"longest": 3, "sentences": sentences, "short_rate": 0.1}


def _arm(sentences: str, masked: float, following: float, order: float) -> Arm:
    head = "masked_lm" if sentences == "none" else "pretraining"
    settings = {"data.objective_settings": _objective(sentences), "model.head": head}
    return Arm(
        changes={"pretraining": settings},
        paper={"masked": masked, "next": following, "order": order},
    )


def _measure(run: str, number: str, in_paper: str) -> OutcomeMeasure:
    return OutcomeMeasure(run=run, number=number, scale=100.0, in_paper=in_paper)


def get_study() -> Study:
    """Return the study."""
    pairs = {
        sentences: {
            "model": {"head": "pretraining"},
            "data": {"objective_settings": _objective(sentences)},
        }
        for sentences in ("next", "order")
    }
    frozen = {"optimizer.frozen": ("embeddings", "projection", "encoder")}
    return Study(
        title="Objectives about sentences in ALBERT at demo size",
        source="Lan et al. 2019, table 5",
        needs={
            "runs/albert_demo/vocabulary.model": (
                "t5x_like.vocabulary --data=data/pydocs.py --set prose=True --kind=albert "
                "--size=4096 --output=runs/albert_demo/vocabulary.model"
            ),
        },
        runs={
            "pretraining": TrainingRun(config="configs/albert.py:demo", changes=_SHORT),
            "pairs": TrainingRun(
                config="configs/albert.py:demo",
                changes={**_SHORT, **frozen, "tasks": pairs, "train.steps": 600},
                starts_from="pretraining",
            ),
        },
        arms={
            "none": _arm("none", 54.9, 52.4, 53.3),
            "next": _arm("next", 54.5, 90.5, 52.0),
            "order": _arm("order", 54.0, 78.9, 86.5),
        },
        measures={
            "masked": _measure("pretraining", "pydocs/accuracy", "MLM"),
            "next": _measure("pairs", "next/pydocs/sentences/accuracy", "NSP"),
            "order": _measure("pairs", "order/pydocs/sentences/accuracy", "SOP"),
        },
        claims=CLAIMS,
    )


CLAIMS = (
    Claim(
        text="Next sentences bring nothing to the order.",
        measure="order",
        arm="next",
        than="none",
        within=2.0,
    ),
    Claim(
        text="The order brings something to next sentences.",
        measure="next",
        arm="order",
        than="none",
    ),
    Claim(text="... less than next sentences.", measure="next", arm="next", than="order"),
    Claim(text="The order brings most to itself.", measure="order", arm="order", than="next"),
    Claim(
        text="Masked tokens are predicted as well beside the order.",
        measure="masked",
        arm="order",
        than="none",
        within=1.0,
    ),
)
