"""What a larger network is better at: facts, and sums, by three widths of Gopher.

    python -m t5x_like.study gopher_tasks --until_decided

Rae et al. 2021, abstract and section 4: reading comprehension and fact-checking gain most from
size, and logical and mathematical reasoning less.

| the paper | here |
|---|---|
| 152 tasks; 117 million to 280 billion parameters | two tasks; 2 layers, 32, 64 and 128 wide |
| one model for all tasks, 300 billion tokens | one for each task, 600 batches of 16 rows |
| knowledge: MMLU, TriviaQA, Natural Questions | 4 facts of each of 200 entities |
| mathematics: the tasks of MMLU and BIG-bench | problems of three operations, answered at once |

The texts are the languages `facts` and `arithmetic` (docs/languages.md). Of a fact the value is
chosen among the eight values of its relation, of which the most frequent is right in 25%; of a sum
the last digit is generated, and a constant is right in 10%. The best possible accuracy is 100%. Two
points of facts do not matter, and five of sums.
"""

import functools
from typing import Any

from configs.studies import gpt3_facts
from t5x_like.research.studies import (
    Arm,
    Claim,
    GeneratedText,
    Learned,
    OutcomeMeasure,
    Study,
    TrainingRun,
)

_SUMS = GeneratedText(language="arithmetic", kind="unigram", size=51)
_STEPS = 600
_SCHEDULE = {"train.steps": _STEPS, "evaluate.every": _STEPS}
_FACTS_RUN: dict[str, Any] = {
    **gpt3_facts.CHANGES,
    **_SCHEDULE,
    "evaluate.measures.in_context.every": _STEPS,
}
_SUMS_RUN: dict[str, Any] = {
    **_SUMS.changes("direct", steps=3),
    **_SCHEDULE,
    "model.vocab_size": _SUMS.size + 100,  # with T5's sentinels
    "data.batch_size": 16,
    "optimizer.learning_rate": 4e-3,
    "train.log_every": 100,
    "checkpoint.every": 0,
    "evaluate.batches": 0,
    "data.objective": "text_to_text",
    "data.converter": "prefix_lm",
    "data.lengths": {"inputs": 32, "targets": 16},
    "decode": {"max_new_tokens": 16, "num_beams": 1},
    "evaluate.measures": {"generation": {"metrics": ("exact_match",), "every": _STEPS}},
}


def _width(width: int) -> Arm:
    size = {"model.d_model": width, "model.d_ff": 4 * width, "model.head_width": width // 4}
    return Arm(changes={"facts": size, "sums": size})


_WIDTHS = (32, 64, 128)
ARMS = {f"width_{width}": _width(width) for width in _WIDTHS}

_knows_more = functools.partial(Claim, measure="facts", margin=2.0)
_solves_no_more = functools.partial(Claim, measure="sums", within=5.0)

CLAIMS = (
    _knows_more("A model twice as wide knows more.", "width_64", "width_32"),
    _knows_more("... and one 4 times as wide.", "width_128", "width_64"),
    _solves_no_more("A model twice as wide solves no more sums.", "width_64", "width_32"),
    _solves_no_more("... nor does one 4 times as wide.", "width_128", "width_64"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="Gopher's tasks by size",
        source="Rae et al. 2021, section 4",
        needs=gpt3_facts.TEXT.needs | _SUMS.needs,
        runs={
            "facts": TrainingRun(config="configs/gopher.py:demo", changes=_FACTS_RUN),
            "sums": TrainingRun(config="configs/gopher.py:demo", changes=_SUMS_RUN),
        },
        arms=ARMS,
        measures={
            "facts": OutcomeMeasure(
                run="facts", number="completions/in_context/accuracy", scale=100.0
            ),
            "sums": OutcomeMeasure(run="sums", number="direct/generation/exact_match", scale=100.0),
        },
        learned=(
            Learned(
                arm="width_128",
                measure="facts",
                than=25.0,
                what="the most frequent value of the relation",
            ),
        ),
        claims=CLAIMS,
    )
