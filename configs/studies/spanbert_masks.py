"""SpanBERT's masks and its span boundary objective, on generated homonyms.

    python -m t5x_like.study spanbert_masks --until_decided

Joshi et al. 2020, section 6: random spans are as good a mask as the best linguistic units, or
better, on most tasks; the span boundary objective improves them further. The text is the language
`homonyms` (docs/languages.md), in rows of two sentences of seven words. The task `fields` asks from
which of 8 fields a sentence of three words is: a constant is right in 1 of 8 sentences, and the
best possible accuracy is 100%. Two points do not matter.

| the paper | here |
|---|---|
| 12 layers, 768 wide | 2 layers, 64 wide |
| 1.2 million batches of 256 rows of 512, 15% masked | 200 batches of 96 rows of 18, 30% masked |
| spans of 3.8 words on average, at most 10 | the same, as far as the row has words |
| subword tokens, named entities, noun phrases | whole words: each is a token |
| SQuAD, NewsQA, TriviaQA, coreference, MNLI, QNLI, GLUE | `fields`, 32 rows, 200 batches of 16 |

After 300 batches and after 600 all three masks were right in 100% with the first seed, so that only
what is learned sooner can differ. On names of several words (`names`, docs/languages.md), where
spans matter more, 24 names without a label were too few to decide anything: with two seeds 65 and
64% with words, 63 and 61% with spans, 67 and 61% with the boundary objective.
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

_TEXT = GeneratedText(language="homonyms", kind="wordpiece", size=278)
_PRETRAINING: dict[str, Any] = {
    **_TEXT.changes(sentences=2),
    "model.vocab_size": _TEXT.size,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.initializer_range": 0.07,  # 0.02 * (768 / 64)^0.5
    "data.objective_settings.rate": 0.3,
    "loss.predicted": 0.5,  # a whole span more than the rate
    "data.lengths": {"inputs": 18},
    "data.batch_size": 96,
    "optimizer.learning_rate": 2e-3,
    "train.steps": 200,
    "train.log_every": 100,
    "evaluate.every": 0,
    "evaluate.batches": 10,
}
_ALONE = {"model.head": "masked_lm"}


def _pretrained(changes: dict[str, Any]) -> Arm:
    return Arm(changes={"pretraining": changes})


ARMS = {
    "boundary": _pretrained({}),
    "spans": _pretrained(_ALONE),
    "words": _pretrained({**_ALONE, "data.objective_settings.longest": 1}),
    "no_pretraining": Arm(leaves_out=("pretraining",)),
}


_better = functools.partial(Claim, measure="accuracy", margin=2.0)

CLAIMS = (
    _better("Pretraining helps.", "spans", "no_pretraining"),
    _better("Spans are better than words.", "spans", "words"),
    _better("The span boundary objective helps.", "boundary", "spans"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="SpanBERT's masks and boundaries",
        source="Joshi et al. 2020, section 6",
        needs=_TEXT.needs,
        runs={
            "pretraining": TrainingRun(config="configs/spanbert.py:demo", changes=_PRETRAINING),
            "fields": _TEXT.fine_tuning("classification", "fields", rows=32, steps=200, around=1),
        },
        arms=ARMS,
        measures={"accuracy": OutcomeMeasure(run="fields", number="fields/accuracy", scale=100.0)},
        learned=(Learned(arm="spans", measure="accuracy", than=12.5, what="a constant"),),
        claims=CLAIMS,
    )
