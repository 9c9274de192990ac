"""Switch Transformer beside a dense network of the same FLOPs per token, on many dialects.

    python -m t5x_like.study switch_experts

Fedus, Zoph and Shazeer 2022: at equal FLOPs per token more experts give a lower loss after the same
number of steps, and reach a loss in fewer steps (figure 4); one expert for each token is better
than two unless there is room for every choice (table 1); and a tenth of the variance at
initialization is better (table 3). The text is the language `dialects` (docs/languages.md): each of
8 dialects has its own table of the four words that may follow each of 64 words, and a document uses
one table, so experts can divide the dialects among them. The entropy is 1.37 nats a word; by word
frequencies a word has 4.16.

| the paper | here |
|---|---|
| encoder-decoders, experts in every other layer | decoders, experts in the second of 2 layers |
| 1 (dense), 8 to 256 experts | 1 (dense), 8 and 32 experts |
| C4, span corruption, 100,000 steps of 2^20 tokens | next words, 600 batches of 1,024 tokens |
| a tenth of the variance at initialization | only in `init_0.1` |
| negative log perplexity | the loss of held-out documents; 0.02 nats do not matter |

What was tried before, with seeds 0 to 2: all arms but one with a tenth of the variance. They
learned later than that one (2.26 nats with eight experts, and 2.04) and less evenly, and the claims
about experts stayed open. A likely reason: Adafactor's steps are in proportion to the parameters,
so smaller parameters also learn more slowly; the paper's initialization is against diverging runs,
which these are not. Two experts cost twice the FLOPs of a token in the sparse layer, and are
compared after the same number of steps. In half of the steps the loss of the dense network is only
reached after long training: with seed 3, 300 batches gave 2.53 nats where the dense network had
2.13 after 600, and 1,200 gave 1.73 beside 1.70 after 2,400.
"""

import functools
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

_TEXT = GeneratedText(language="dialects", kind="unigram", size=120)
_STEPS = 600
_CHANGES = {
    **_TEXT.changes(dialects=8),
    "model.architecture": "decoder",
    "model.vocab_size": 220,
    "model.decoder_layers": 2,
    "model.d_model": 32,
    "model.d_ff": 64,
    "model.heads": 4,
    "model.d_kv": 8,
    "model.init_scale": 1.0,
    "data.objective": "language_modeling",
    "data.converter": "decoder",
    "data.lengths": {"targets": 64},
    "data.batch_size": 16,
    "optimizer.learning_rate": 0.03,
    "train.log_every": 100,
    "checkpoint.every": 0,
    "evaluate.every": 0,  # at the end
    "evaluate.batches": 60,
}
_FIGURE, _TABLE_1, _TABLE_3 = "Figure 4: experts", "Table 1: routers", "Table 3: initialization"


def _arm(part: str, *, steps: int = _STEPS, **model: Any) -> Arm:
    changes = {f"model.{name}": value for name, value in model.items()}
    return Arm(changes={"pretraining": {**changes, "train.steps": steps}}, part=part)


ARMS = {
    "dense": _arm(_FIGURE, experts=1),
    "experts_8": _arm(_FIGURE, experts=8),
    "experts_32": _arm(_FIGURE, experts=32),
    "dense_4800": _arm(_FIGURE, experts=1, steps=4800),
    "experts_8_2400": _arm(_FIGURE, experts=8, steps=2400),
    "switch_1.0": _arm(_TABLE_1, experts=8, capacity_factor=1.0),
    "top2_1.0": _arm(_TABLE_1, experts=8, router="top2", capacity_factor=1.0),
    "top2_1.25": _arm(_TABLE_1, experts=8, router="top2", capacity_factor=1.25),
    "init_0.1": _arm(_TABLE_3, experts=8, init_scale=0.1),
}

_better = functools.partial(Claim, measure="loss", margin=0.02)

CLAIMS = (
    _better("Eight experts are better than a dense network.", "experts_8", "dense"),
    _better("32 experts are better than eight.", "experts_32", "experts_8"),
    _better("Eight experts need at most half of the steps.", "experts_8_2400", "dense_4800"),
    _better("With 1.0 slots a token one expert is better than two.", "switch_1.0", "top2_1.0"),
    _better("With 1.25 slots a token one expert is better than two.", "experts_8", "top2_1.25"),
    _better("The smaller initialization is better.", "init_0.1", "experts_8"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="Experts beside a dense network",
        source="Fedus, Zoph and Shazeer 2022, figure 4, tables 1 and 3",
        needs=_TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/switch.py:demo", changes=_CHANGES)},
        arms=ARMS,
        measures={
            "loss": OutcomeMeasure(
                run="pretraining",
                number="dialects/cross_entropy",
                smaller_is_better=True,
            )
        },
        learned=(Learned(arm="dense", measure="loss", than=4.16, what="word frequencies"),),
        claims=CLAIMS,
        seeds=range(3, 7),
    )
