"""Learning within a context, by the number of layers: the claim of GPT-3, on dictionaries.

    python -m t5x_like.study in_context --until_decided

Brown et al. 2020, figure 1.2: larger models make better use of the examples in their context. In
the language `in_context` (docs/languages.md) a document is a dictionary of its own, so everything
that a model can know about a repeated key it must read in the context. Olsson et al. 2022
(section "Argument 1") explain the step: copying what followed an earlier occurrence takes two
layers of attention.

| the paper | here |
|---|---|
| GPT-3, 1.3 to 175 billion parameters | LLaMA's architecture, 64 wide, 1, 2 and 4 layers |
| 0, 1 and many examples of a task | a document of 32 examples, read from left to right |
| accuracy | excess nats per word over the language's entropy; 0 is the best possible |

A difference of 0.02 nats does not matter. In trials of 1,500 batches with one seed and a learning
rate of 3e-3, before the claims were tested, one, two and four layers had an excess of 0.35, 0.20
and 0.32 nats: four layers learn later. After 2,500 batches at 2e-3 six seeds decide the first
claim, and leave the second open: the loss of two layers varies by 0.06 nats between seeds.
"""

import math

from t5x_like.research.studies import (
    Arm,
    Claim,
    GeneratedText,
    Learned,
    OutcomeMeasure,
    Study,
    TrainingRun,
)

_TEXT = GeneratedText(language="in_context", kind="byte_bpe", size=324)
_STEPS = 2500
# Of three words one is a value: log 8 nats without the context. With it only the values of new keys
# cost nats, 0.108 per word of a document of 32 examples.
_WITHOUT_CONTEXT = math.log(8) / 3 - 0.108


def _layers(number: int) -> Arm:
    return Arm(changes={"pretraining": {"model.layers": number}})


def get_study() -> Study:
    """Return the study."""
    changes = {
        **_TEXT.changes(examples=32),
        "model.vocab_size": _TEXT.size,
        "model.d_model": 64,
        "model.d_ff": 176,
        "train.steps": _STEPS,
        "train.log_every": 500,
        "evaluate.every": _STEPS,
        "evaluate.measures": {"loss": {}, "documents": {"stride": 64, "every": _STEPS}},
    }
    excess = OutcomeMeasure(
        run="pretraining", number="in_context/documents/excess_nats", smaller_is_better=True
    )
    return Study(
        title="Learning within a context, by the number of layers",
        source="Brown et al. 2020, figure 1.2",
        needs=_TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/llama.py:demo", changes=changes)},
        arms={"one_layer": _layers(1), "two_layers": _layers(2), "four_layers": _layers(4)},
        measures={"excess": excess},
        learned=(
            Learned(
                arm="four_layers",
                measure="excess",
                than=_WITHOUT_CONTEXT,
                what="values without the context",
            ),
        ),
        claims=CLAIMS,
    )


CLAIMS = (
    Claim(
        text="Two layers use the context better than one.",
        measure="excess",
        arm="two_layers",
        than="one_layer",
        margin=0.02,
    ),
    Claim(
        text="Four layers use it better than two.",
        measure="excess",
        arm="four_layers",
        than="two_layers",
        margin=0.02,
    ),
)
