"""LLaMA with fewer heads of keys and values than of queries, on generated dialects.

    python -m t5x_like.study llama_heads

Touvron et al. 2023b (LLaMA 2), appendix A.2.1, table 18: grouped queries (GQA) are as good as a key
and value for each query head, and better than a single one for all (MQA). Chowdhery et al. 2022
(PaLM), section 2: a single one is neutral, too. The text is the language `dialects`
(docs/languages.md), with an entropy of 1.37 nats a word; by word frequencies a word has 4.16. 0.02
nats do not matter.

| the paper | here |
|---|---|
| 30 billion parameters | 2 layers, 96 wide |
| query heads; GQA's 8 | 4; 2 |
| 150 billion tokens | 600 batches of 1,024 tokens, none read twice |
| a wider feed-forward layer instead of the missing heads | the same layer |
| twelve tasks | nats of held-out words |
"""

import functools

from configs.studies.gpt2_sizes import CHANGES, TEXT, better
from t5x_like.research.studies import Arm, Claim, Learned, OutcomeMeasure, Study, TrainingRun

_CHANGES = {
    **CHANGES,
    "model.d_model": 96,
    "model.d_ff": 256,
    "model.head_width": 24,
    "train.steps": 600,
}


def _arm(heads: int) -> Arm:
    return Arm(changes={"pretraining": {"model.kv_heads": heads}})


ARMS = {"four": _arm(4), "two": _arm(2), "one": _arm(1)}

_as_good = functools.partial(Claim, than="four", measure="loss", within=0.02)

CLAIMS = (
    _as_good("Two heads of keys and values are as good as four.", "two"),
    better("Two are better than one.", "two", "one"),
    _as_good("One is as good as four.", "one"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="LLaMA with fewer heads of keys and values",
        source="Touvron et al. 2023b, table 18, and Chowdhery et al. 2022, section 2",
        needs=TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/llama.py:demo", changes=_CHANGES)},
        arms=ARMS,
        measures={
            "loss": OutcomeMeasure(
                run="pretraining", number="dialects/cross_entropy", smaller_is_better=True
            )
        },
        learned=(Learned(arm="four", measure="loss", than=4.16, what="word frequencies"),),
        claims=CLAIMS,
        seeds=range(4),
    )
