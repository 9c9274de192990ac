"""What a language model knows, by its size, its training and the examples in its prompt.

    python -m t5x_like.study gpt3_facts --until_decided

Brown et al. 2020, section 3.2, figure 3.3: closed-book answers of TriviaQA improve steadily with
the size of the model, and with examples in the prompt. Radford et al. 2018, section 5, figure 2:
the answers of a model that was not fine-tuned improve steadily over pretraining.

The text is the language `facts` (docs/languages.md): 4 facts of each of 200 entities, a few of
which have most of the mentions. The task `completions` has a fact without its value, which the
model chooses among the eight values of the relation, without having been fine-tuned. The most
frequent value of the relation is right in 25%, and the best possible accuracy is 100%. Two points
do not matter.

| the paper | here |
|---|---|
| GPT-3, 0.1 to 175 billion parameters | GPT-2's architecture, 2 layers, 32, 64 and 128 wide |
| 300 billion tokens | 600 batches of 1,024 tokens; half and twice as many |
| 0, 1 and 64 examples | 0 and 8 |
| TriviaQA: generated answers | completions: the likeliest of 8 values |

This design was tried with the first seed.
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

TEXT = GeneratedText(language="facts", kind="unigram", size=273)
CHANGES = {
    **TEXT.changes(),
    "model.vocab_size": 373,  # with T5's sentinels
    "data.lengths": {"targets": 64},
    "data.batch_size": 16,
    "optimizer.learning_rate": 4e-3,
    "train.log_every": 100,
    "checkpoint.every": 0,
    "evaluate.batches": 0,
    "evaluate.tasks": ("completions",),
    "evaluate.measures": {"in_context": {"template": "{inputs} {targets}", "separator": " . "}},
}


def _arm(width: int, *, steps: int = 600, shots: int = 0) -> Arm:
    changes: dict[str, Any] = {
        "model.d_model": width,
        "model.d_ff": 4 * width,
        "train.steps": steps,
        "evaluate.every": steps,
        "evaluate.measures.in_context.every": steps,
        "evaluate.measures.in_context.shots": shots,
    }
    return Arm(changes={"pretraining": changes})


ARMS = {
    "width_32": _arm(32),
    "width_64": _arm(64),
    "width_128": _arm(128),
    "width_128_shots": _arm(128, shots=8),
    "width_64_half": _arm(64, steps=300),
    "width_64_twice": _arm(64, steps=1200),
}

_better = functools.partial(Claim, measure="accuracy", margin=2.0)

CLAIMS = (
    _better("A model twice as wide knows more.", "width_64", "width_32"),
    _better("... and one 4 times as wide.", "width_128", "width_64"),
    _better("Answers improve over pretraining.", "width_64", "width_64_half"),
    _better("... and further, with twice as much.", "width_64_twice", "width_64"),
    _better("Examples in the prompt help.", "width_128_shots", "width_128"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="Facts by size, training and examples",
        source="Brown et al. 2020, figure 3.3; Radford et al. 2018, figure 2",
        needs=TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/gpt2.py:demo", changes=CHANGES)},
        arms=ARMS,
        measures={
            "accuracy": OutcomeMeasure(
                run="pretraining", number="completions/in_context/accuracy", scale=100.0
            )
        },
        learned=(
            Learned(
                arm="width_128",
                measure="accuracy",
                than=25.0,
                what="the most frequent value of the relation",
            ),
        ),
        claims=CLAIMS,
    )
