"""Transformer-XL with memories of several lengths, on generated dialects.

    python -m t5x_like.study transformer_xl_memory

Dai et al. 2019, section 4.2, tables 6 and 7: with recurrence from row to row the perplexity of
WikiText-103 and One Billion Word is lower, and with longer attention lower again. The text is the
language `dialects` (docs/languages.md): a document of 41 words has one of 8 dialects, each with a
table of the words that may follow each word. Its first word, and the words that follow each other,
tell which; at the beginning of a row of 8 tokens they are in the rows before. The entropy is 1.37
nats a word; by word frequencies a word has 4.16. 0.02 nats do not matter.

| the paper | here |
|---|---|
| 16 layers, 410 wide (151M) | 2 layers, 96 wide |
| rows of 150 tokens, memory of 150 | rows of 8 tokens, memory of 8 or 24; rows of 32 without |
| WikiText-103, One Billion Word | generated documents, 600 batches of 1,024 tokens |
"""

from configs.studies.gpt2_sizes import CHANGES, TEXT, better
from t5x_like.research.studies import Arm, Learned, OutcomeMeasure, Study, TrainingRun

_CHANGES = {
    **CHANGES,
    "model.d_model": 96,
    "model.d_ff": 256,
    "train.steps": 600,
}


def _arm(memory: int, *, tokens: int) -> Arm:
    settings = {
        "model.memory": memory,
        "data.lengths": {"targets": tokens},
        "data.batch_size": 1024 // tokens,
        "evaluate.batches": 60,
    }
    return Arm(changes={"pretraining": settings})


ARMS = {
    "memory_24": _arm(24, tokens=8),
    "memory_8": _arm(8, tokens=8),
    "no_memory": _arm(0, tokens=8),
    "long_rows": _arm(0, tokens=32),
}
CLAIMS = (
    better("Memory helps.", "memory_8", "no_memory"),
    better("A longer memory helps more.", "memory_24", "memory_8"),
    better("... more than rows as long as row and memory.", "memory_24", "long_rows"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="Transformer-XL's memory",
        source="Dai et al. 2019, tables 6 and 7",
        needs=TEXT.needs,
        runs={
            "pretraining": TrainingRun(config="configs/transformer_xl.py:demo", changes=_CHANGES)
        },
        arms=ARMS,
        measures={
            "loss": OutcomeMeasure(
                run="pretraining", number="dialects/cross_entropy", smaller_is_better=True
            )
        },
        learned=(Learned(arm="no_memory", measure="loss", than=4.16, what="word frequencies"),),
        claims=CLAIMS,
        seeds=range(4),
    )
