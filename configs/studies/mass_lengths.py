"""MASS by the length of the fragment: one token, half of a text, all of it.

    python -m t5x_like.study mass_lengths --until_decided

Song et al. 2019, sections 3.2 and 4.5, figure 5: a fragment of half of the sentence is better than
a single token, which makes MASS a masked language model, and than the whole sentence, which makes
it a language model.

The text is the language `homonyms` (docs/languages.md). The task `named` asks for the name of the
field of a sentence of three words, which is one of 8 words. A constant is right in 1 of 8
sentences, and the best possible accuracy is 100%. Two points do not matter.

| the paper | here |
|---|---|
| 6 + 6 layers, 1024 wide | 1 + 1 layers, 64 wide |
| 100 epochs of 200,000 sentences | 800 batches of 48 rows of 32 tokens |
| k from 10% to 90% of a sentence's tokens | 1, 6 and all 12 tokens of three sentences |
| translation, summaries, dialogs | `named`, 32 rows, 200 batches of 16 |
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
_TUNING = 200
_PRETRAINING = {
    **_TEXT.changes(around=1),
    "model.vocab_size": _TEXT.size,
    "model.d_model": 64,
    "model.d_ff": 256,
    "data.lengths": {"inputs": 32, "targets": 32},
    "data.batch_size": 48,
    "train.steps": 800,
    "train.log_every": 100,
    "evaluate.every": 0,
    "evaluate.batches": 10,
}
_NAMED = {
    **_TEXT.generation("named", rows=32, steps=_TUNING, around=1),
    "optimizer": {
        "name": "adamw",
        "schedule": "linear",
        "learning_rate": 1e-3,
        "warmup_steps": _TUNING // 10,
        "decay_steps": _TUNING,
    },
}


def _fragment(**settings: float) -> Arm:
    changes = {f"data.objective_settings.{name}": value for name, value in settings.items()}
    return Arm(changes={"pretraining": changes})


ARMS = {
    "half": _fragment(rate=0.5),
    "one_token": _fragment(tokens=1),
    "all_tokens": _fragment(rate=1.0, random_rate=0.0, kept_rate=0.0),
    "no_pretraining": Arm(leaves_out=("pretraining",)),
}
_better = functools.partial(Claim, measure="accuracy", margin=2.0)

CLAIMS = (
    _better("Pretraining helps.", "half", "no_pretraining"),
    _better("Half of the text is better than one token.", "half", "one_token"),
    _better("... and than all of it.", "half", "all_tokens"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="MASS by the length of the fragment",
        source="Song et al. 2019, figure 5",
        needs=_TEXT.needs,
        runs={
            "pretraining": TrainingRun(config="configs/mass.py:demo", changes=_PRETRAINING),
            "named": TrainingRun(
                config="configs/pyglue.py:text", changes=_NAMED, starts_from="pretraining"
            ),
        },
        arms=ARMS,
        measures={
            "accuracy": OutcomeMeasure(
                run="named", number="named/generation/exact_match", scale=100.0
            ),
        },
        learned=(Learned(arm="half", measure="accuracy", than=12.5, what="a constant"),),
        claims=CLAIMS,
    )
