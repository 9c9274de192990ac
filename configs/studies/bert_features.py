"""BERT's features by layer: one layer, several, or fine-tuning, on generated homonyms.

    python -m t5x_like.study bert_features --until_decided

Devlin et al. 2018, section 5.3, table 7: a network over features of a frozen BERT is nearly as good
as fine-tuning; the embeddings are the worst features, the layer before the last is better than the
last, and the last four together, concatenated or as a weighted sum, are the best.

The text is the language `homonyms` (docs/languages.md); the task `tags` has an ambiguous word,
between two words of the field that it has here, and its tag is this field. The word itself is right
in half of these tags, and so in 5/6 of all tags, as the tag of the other words is certain. The best
possible accuracy is 100%. One point does not matter, and two beside fine-tuning.

| the paper | here |
|---|---|
| BERT base, 12 layers | 4 layers, 64 wide, 600 batches of 96 rows, trained by each seed |
| NER of CoNLL-2003, 14,000 sentences | `tags`, 256 rows |
| a biLSTM of two layers, 768 wide | only the layer of the tags |
| last four layers, and all twelve | all four (`weighted_all` is left out) |

With a biLSTM of two layers and 64 rows all arms had 99.9 to 100% with the first seed, the
embeddings too: it learns by itself what the word beside an ambiguous word tells.
"""

import functools

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
_PRETRAINING = {
    **_TEXT.changes(sentences=1),
    "train.phases": (),
    "phases": {},
    "model.head": "masked_lm",
    "model.vocab_size": _TEXT.size,
    "model.layers": 4,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.initializer_range": 0.07,  # 0.02 * (768 / 64)^0.5
    "data.objective_settings.next_sentence": False,
    "data.lengths": {"inputs": 12},
    "data.batch_size": 96,
    "train.steps": 600,
    "train.log_every": 100,
    "evaluate.every": 0,
    "evaluate.batches": 1,
}


def _features(layers: str, paper: float) -> Arm:
    changes = {
        "optimizer.frozen": ("embeddings", "encoder"),
        "optimizer.learning_rate": 3e-3,
        "model.layer_features": layers,
    }
    return Arm(changes={"tags": changes}, paper={"accuracy": paper})


ARMS = {
    "fine_tuning": Arm(paper={"accuracy": 96.4}),
    "embeddings": _features("embeddings", 91.0),
    "second_to_last": _features("second_to_last", 95.6),
    "last": _features("last", 94.9),
    "weighted": _features("weighted_last_4", 95.9),
    "concatenated": _features("concatenated_last_4", 96.1),
}

_better = functools.partial(Claim, measure="accuracy", margin=1.0)

CLAIMS = (
    Claim(
        text="The best features are as good as fine-tuning.",
        measure="accuracy",
        arm="concatenated",
        than="fine_tuning",
        within=2.0,
    ),
    _better("A layer is better than the embeddings.", "last", "embeddings"),
    _better("The layer before the last is better than the last.", "second_to_last", "last"),
    _better("Four layers, concatenated, are better than the last.", "concatenated", "last"),
    _better("... and better than their weighted sum.", "concatenated", "weighted"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="BERT's features by layer",
        source="Devlin et al. 2018, table 7",
        needs=_TEXT.needs,
        runs={
            "pretraining": TrainingRun(config="configs/bert.py:demo", changes=_PRETRAINING),
            "tags": _TEXT.fine_tuning(
                "tagging", "tags", rows=256, steps=400, around=1, tag="field"
            ),
        },
        arms=ARMS,
        measures={
            "accuracy": OutcomeMeasure(
                run="tags", number="tags/accuracy", scale=100.0, in_paper="NER"
            )
        },
        learned=(Learned(arm="last", measure="accuracy", than=83.3, what="the word itself"),),
        claims=CLAIMS,
    )
