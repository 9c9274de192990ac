"""RoBERTa's formats of rows, with and without next sentences, on generated events.

    python -m t5x_like.study roberta_formats --until_decided

Liu et al. 2019, section 4.2, table 2: pairs of single sentences are worse than pairs of segments,
since the model does not learn long-range dependencies; without the loss of next sentences rows of
full sentences are as good as segment pairs, or better; rows from one document are slightly better
than rows that cross documents.

The text is the language `events` (docs/languages.md): a document tells all six events of one of 4
topics, in the order of the topic, in 30 words. The task `topics` has two events, and asks whether
they are of the same topic. A constant is right in half of the rows, and the best possible accuracy
is 100%. Two points do not matter.

| the paper | here |
|---|---|
| BERT base, 1,000,000 batches of 256 rows of 512 tokens | 64 wide, 600 batches of 64 rows of 40 |
| sentence pairs: more rows, so that the tokens are as many | 160 rows of 16 tokens |
| SQuAD, MNLI, SST-2, RACE | `topics`, 128 rows, 400 batches of 16 |

With 32 rows and one seed, before the claims were written, the four formats had 98, 92, 82 and 81%
in the order of the arms; on the task `order` they had 67, 72, 58 and 58%, too near to a constant.
With 64 rows and 150 batches nine seeds decided no claim: segment pairs 100%, sentence pairs 98 +-
3, full sentences 86 +- 15, rows of one document 88 +- 8. Without next sentences some seeds had not
learned the task when fine-tuning ended, so it has more rows and batches now. One of twelve seeds
still has not (77% with full sentences), which leaves two of the claims open.
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

_TEXT = GeneratedText(language="events", kind="byte_bpe", size=352)
_WORLD: dict[str, Any] = {"topics": 4, "events": 6}
_PRETRAINING = {
    **_TEXT.changes(**_WORLD, chosen=6),
    "model.vocab_size": _TEXT.size,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.initializer_range": 0.07,  # 0.02 * (768 / 64)^0.5
    "data.lengths": {"inputs": 40},
    "data.batch_size": 64,
    "optimizer.learning_rate": 2e-3,
    "train.steps": 600,
    "train.log_every": 100,
    "evaluate.every": 0,
    "evaluate.batches": 10,
}


def _arm(row_format: str, race: float, **changes: object) -> Arm:
    settings = {"data.objective_settings.format": row_format, **changes}
    return Arm(changes={"pretraining": settings}, paper={"accuracy": race})


_PAIRS = {"model.head": "pretraining"}
_SHORT = {"data.lengths": {"inputs": 16}, "data.batch_size": 160}
ARMS = {
    "segment_pair": _arm("segment_pair", 84.0, **_PAIRS),
    "sentence_pair": _arm("sentence_pair", 82.9, **_PAIRS, **_SHORT),
    "full_sentences": _arm("full_sentences", 84.7),
    "doc_sentences": _arm("doc_sentences", 84.7),
}

_better = functools.partial(Claim, measure="accuracy", margin=2.0)

CLAIMS = (
    _better("Sentence pairs are worse than segment pairs.", "segment_pair", "sentence_pair"),
    Claim(
        text="Without next sentences full sentences are as good.",
        measure="accuracy",
        arm="full_sentences",
        than="segment_pair",
        within=2.0,
    ),
    _better("Rows of one document are better.", "doc_sentences", "full_sentences"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="RoBERTa's formats of rows",
        source="Liu et al. 2019, table 2",
        needs=_TEXT.needs,
        runs={
            "pretraining": TrainingRun(config="configs/roberta.py:demo", changes=_PRETRAINING),
            "topics": _TEXT.fine_tuning(
                "classification", "topics", rows=128, steps=400, length=20, **_WORLD
            ),
        },
        arms=ARMS,
        measures={
            "accuracy": OutcomeMeasure(
                run="topics", number="topics/accuracy", scale=100.0, in_paper="MNLI"
            )
        },
        learned=(Learned(arm="segment_pair", measure="accuracy", than=50.0, what="a constant"),),
        claims=CLAIMS,
    )
