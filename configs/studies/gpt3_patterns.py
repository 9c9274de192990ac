"""GPT-3 with dense, banded, strided and fixed attention, on generated dialects.

    python -m t5x_like.study gpt3_patterns

Child et al. 2019, table 2: on Enwik8 their fixed attention has fewer bits a byte than dense
attention, and their strided attention more. Brown et al. 2020, section 2.1, alternate dense and
locally banded layers, without a comparison. The text is the language `dialects`
(docs/languages.md): a document of 41 words is in one of 8 dialects, each with a table of the words
that may follow each word; earlier words of the document identify the dialect. The entropy is 1.37
nats a word; by word frequencies a word has 4.16. 0.02 nats do not matter.

| the papers | here |
|---|---|
| 30 layers, 512 wide (Child) | 2 layers, 96 wide |
| rows of 12,288 bytes, stride of 128 | rows of 64 tokens, stride of 8, band of 8 |
| Enwik8 | generated documents, 600 batches of 1,024 tokens |

Both sparse patterns are worse here, fixed attention most. Depth seems to be a part of the reason,
since two layers of a sparse pattern are needed where one dense layer reads every word: with four
layers the first seed has 1.78 nats with strided and 1.94 with fixed attention, and 1.73 with dense.
"""

import functools

from configs.studies.gpt2_sizes import CHANGES, TEXT, better
from t5x_like.research.studies import Arm, Claim, Learned, OutcomeMeasure, Study, TrainingRun

_CHANGES = {
    **CHANGES,
    "phases": {},
    "train.phases": (),
    "optimizer.warmup_steps": 60,
    "optimizer.decay_steps": 600,
    "model.d_model": 96,
    "model.d_ff": 384,
    "model.heads": 4,
    "model.head_width": 24,
    "model.positions": 64,
    "train.steps": 600,
}


def _arm(bits: float | None = None, **settings: str | int) -> Arm:
    changes = {f"model.{name}": value for name, value in settings.items()}
    return Arm(changes={"pretraining": changes}, paper={} if bits is None else {"loss": bits})


# `strided` and `fixed` refuse a `window` other than the default, 256; the demo has 16.
ARMS = {
    "dense": _arm(1.00, window=64),
    "banded": _arm(window=8),
    "strided": _arm(1.13, pattern="strided", window=256, stride=8),
    "fixed": _arm(0.99, pattern="fixed", window=256, stride=8, summary=2),
}

_as_good = functools.partial(Claim, than="dense", measure="loss", within=0.02)

CLAIMS = (
    _as_good("Bands in every second layer are as good as dense attention.", "banded"),
    _as_good("Fixed attention is as good as dense attention.", "fixed"),
    better("Fixed attention is better than strided attention.", "fixed", "strided"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="GPT-3's patterns of attention",
        source="Child et al. 2019, table 2, and Brown et al. 2020, section 2.1",
        needs=TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/gpt3.py:demo", changes=_CHANGES)},
        arms=ARMS,
        measures={
            "loss": OutcomeMeasure(
                run="pretraining",
                number="dialects/cross_entropy",
                smaller_is_better=True,
                in_paper="Enwik8, bits a byte",
            )
        },
        learned=(Learned(arm="dense", measure="loss", than=4.16, what="word frequencies"),),
        claims=CLAIMS,
        seeds=range(3),
    )
