"""BigBird's building blocks at demo size: random, window, both, and both with global blocks.

    python -m t5x_like.study bigbird_parts --plan
    python -m t5x_like.study bigbird_parts

Zaheer et al. 2020, section 2, table 1: random blocks and a window are better together than
separately, but worse than dense attention, which is why global blocks are added. The paper compares
accuracies on rows of 512 tokens; here rows have 16 blocks of 4 tokens.
"""

from t5x_like.studies import Arm, Claim, OutcomeMeasure, Study, TrainingRun

PARTS = {
    "bigbird": "window|random|global",
    "random": "random",
    "window": "window",
    "random_and_window": "window|random",
    "dense": "all",
}


def _better(text: str, arm: str, than: str) -> Claim:
    return Claim(text=text, measure="accuracy", arm=arm, than=than)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="BigBird's building blocks",
        source="Zaheer et al. 2020, table 1",
        needs={
            "runs/bigbird_demo/vocabulary.model": (
                "t5x_like.vocabulary --data=data/pydocs.py --kind=albert --size=4096 "
                "--output=runs/bigbird_demo/vocabulary.model"
            ),
        },
        runs={"pretraining": TrainingRun(config="configs/bigbird.py:demo")},
        arms={
            name: Arm(changes={"pretraining": {"model.attention_parts": parts}})
            for name, parts in PARTS.items()
        },
        measures={
            "accuracy": OutcomeMeasure(run="pretraining", number="pydocs/accuracy", scale=100.0)
        },
        claims=(
            _better("Both are better than random blocks.", "random_and_window", "random"),
            _better("Both are better than a window.", "random_and_window", "window"),
            _better("Global blocks help.", "bigbird", "random_and_window"),
            _better("Dense attention is better than both.", "dense", "random_and_window"),
        ),
    )
