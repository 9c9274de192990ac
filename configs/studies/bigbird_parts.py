"""BigBird's building blocks: random blocks, a window, both, and both with global blocks.

    python -m t5x_like.study bigbird_parts

Zaheer et al. 2020, section 2, table 1: random blocks and a window are better together than
separately, but worse than dense attention, which is why global blocks are added. There are two
generated languages (docs/languages.md). In `agreement` what a masked word can be depends on words
near it: there the window is needed. In `references` a document begins with a name and its color,
36 words that say nothing follow, and the question and its answer repeat name and color: there the
first and the last blocks must see each other. Without that 20% of the masked tokens can be right,
with it 28%. Random blocks connect two of the four words with their repetition directly.

| the paper | here |
|---|---|
| base: 12 layers, 768 wide, 512 tokens | 2 layers, 64 wide, 2 heads, 24 blocks of 2 tokens |
| masked tokens, 64.2% of them with dense attention | masked tokens, by language |

On documentation, and on a language whose words depend on their neighbors and on the first word of
the document, dense attention learned later than a window, and was worse after 800 batches. With one
head and one random block no word is connected with its repetition. After 500 batches dense
attention had learned half of `references`. The number of seeds was set after the first two; the
intervals are for a fixed number.
"""

import functools
from collections.abc import Mapping
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

_FAR = GeneratedText(language="references", kind="albert", size=88)
_NEAR = GeneratedText(language="agreement", kind="wordpiece", size=148)
_FAR_CHANGES = {**_FAR.changes(names=1, distance=36, asked=1), "train.steps": 1000}
_CHANGES: dict[str, Any] = {
    "data.lengths": {"inputs": 48},
    # Only [MASK], so that the accuracy without the far blocks is known.
    "data.objective_settings.random_rate": 0.0,
    "data.objective_settings.kept_rate": 0.0,
    "model.vocab_size": 148,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.heads": 2,
    "model.block": 2,
    "model.random": 2,
    "model.initializer_range": 0.07,  # 0.02 * (768 / 64)^0.5
    "train.steps": 500,
    "evaluate.every": 0,  # at the end
    "evaluate.batches": 0,  # all rows
}


def _arm(text: Mapping[str, Any], parts: str, **paper: float) -> Arm:
    # The number of the language has one name in all arms.
    average = {"masked": {"tokens": f"{text['data.task']}/accuracy"}}
    changes = {**text, "model.attention_parts": parts, "evaluate.averages": average}
    return Arm(changes={"pretraining": changes}, paper=paper)


ARMS = {
    "near_random": _arm(_NEAR.changes(), "random", accuracy=60.1),
    "near_random_and_window": _arm(_NEAR.changes(), "window|random", accuracy=62.7),
    "far_window": _arm(_FAR_CHANGES, "window", accuracy=58.3),
    "far_random_and_window": _arm(_FAR_CHANGES, "window|random", accuracy=62.7),
    "far_bigbird": _arm(_FAR_CHANGES, "window|random|global"),
    "far_dense": _arm(_FAR_CHANGES, "all", accuracy=64.2),
}

_better = functools.partial(Claim, measure="accuracy", margin=0.5)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="BigBird's building blocks",
        source="Zaheer et al. 2020, table 1",
        needs={**_FAR.needs, **_NEAR.needs},
        runs={
            "pretraining": TrainingRun(
                config="configs/bigbird.py:demo", changes={**_FAR.changes(), **_CHANGES}
            )
        },
        arms=ARMS,
        measures={
            "accuracy": OutcomeMeasure(
                run="pretraining", number="masked/average", scale=100.0, in_paper="MLM"
            )
        },
        seeds=range(5),  # after two seeds, whose random blocks were learned to a varying degree
        learned=(
            # Without what stands in other blocks, each position's best word.
            Learned(arm="far_dense", measure="accuracy", than=20.2, what="positions"),
            Learned(arm="near_random", measure="accuracy", than=13.2, what="a constant"),
        ),
        claims=(
            _better("Both are better than random blocks.", "near_random_and_window", "near_random"),
            _better("Both are better than a window.", "far_random_and_window", "far_window"),
            _better("Global blocks help.", "far_bigbird", "far_random_and_window"),
            _better("Dense attention is better than both.", "far_dense", "far_random_and_window"),
        ),
    )
