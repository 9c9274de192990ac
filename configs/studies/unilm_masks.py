"""UniLM's masks: all of them, and one by one, fine-tuned to understand and to generate.

    python -m t5x_like.study unilm_masks --until_decided

Dong et al. 2019, section 2: one network that is pretrained under bidirectional, left-to-right,
right-to-left and sequence-to-sequence masks serves understanding and generation. The paper has no
network that was pretrained under one of the masks, which is what this study adds.

The text is the language `homonyms` (docs/languages.md). The task `fields` asks for the field of a
sentence of three words, which a class answers; `named` asks for the field's name, which the network
generates under the sequence-to-sequence mask. A constant is right in 1 of 8 sentences, and the best
possible accuracy is 100%. Two points do not matter.

| the paper | here |
|---|---|
| BERT large, 24 layers, initialized with BERT | 2 layers, 64 wide, random initialization |
| 770,000 batches of 330 rows of 512, 15% masked | 1,000 batches of 96 rows of 12, 30% masked |
| next sentences in bidirectional rows | none, in all arms |
| documents of many sentences | documents of two sentences |
| GLUE, SQuAD; Gigaword, CNN/DM, CoQA | `fields` and `named`, 32 rows each, 200 batches of 16 |
"""

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
_TUNING = 200
_MASKS = ("bidirectional", "sequence_to_sequence", "left_to_right", "right_to_left")
_PRETRAINING: dict[str, Any] = {
    **_TEXT.changes(around=1, sentences=2),
    "model.head": "masked_lm",
    "model.vocab_size": _TEXT.size,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.initializer_range": 0.07,  # 0.02 * (768 / 64)^0.5
    "data.objective_settings.rate": 0.3,
    "data.lengths": {"inputs": 12},
    "data.batch_size": 96,
    "optimizer.learning_rate": 2e-3,
    "train.steps": 1000,
    "train.log_every": 100,
    "evaluate.every": 0,
    "evaluate.batches": 10,
}
_NAMED: dict[str, Any] = {
    **_TEXT.generation("named", rows=32, steps=_TUNING, around=1),
    "data.objective_settings": {"rate": 0.7, "target_length": 4},
    "data.lengths": {"inputs": 16},
    "optimizer.learning_rate": 1e-3,
    "optimizer.warmup_steps": _TUNING // 10,
    "optimizer.decay_steps": _TUNING,
    "loss.label_smoothing": 0.0,
}


def _alone(mask: str) -> Arm:
    shares = {f"data.objective_settings.{name}": float(name == mask) for name in _MASKS}
    return Arm(changes={"pretraining": shares})


ARMS = {
    "all": Arm(),
    **{mask: _alone(mask) for mask in _MASKS[:3]},
    "no_pretraining": Arm(leaves_out=("pretraining",)),
}
_UNDERSTOOD, _GENERATED = "understanding", "generation"


def _better(text: str, measure: str, arm: str, than: str) -> Claim:
    return Claim(text=text, measure=measure, arm=arm, than=than, margin=2.0)


def _as_good(text: str, measure: str, than: str) -> Claim:
    return Claim(text=text, measure=measure, arm="all", than=than, within=2.0)


CLAIMS = (
    _better("Understanding: pretraining helps.", _UNDERSTOOD, "all", "no_pretraining"),
    _as_good("... all masks are as good as the bidirectional one.", _UNDERSTOOD, "bidirectional"),
    _better("... and better than left to right.", _UNDERSTOOD, "all", "left_to_right"),
    _better("Generation: pretraining helps.", _GENERATED, "all", "no_pretraining"),
    _as_good(
        "... all masks are as good as the sequence-to-sequence one.",
        _GENERATED,
        "sequence_to_sequence",
    ),
    _better("... and better than the bidirectional one.", _GENERATED, "all", "bidirectional"),
    _better("... and than left to right.", _GENERATED, "all", "left_to_right"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="UniLM's masks one by one",
        source="Dong et al. 2019, section 2",
        needs=_TEXT.needs,
        runs={
            "pretraining": TrainingRun(config="configs/unilm.py:demo", changes=_PRETRAINING),
            "fields": _TEXT.fine_tuning(
                "classification", "fields", rows=32, steps=_TUNING, around=1
            ),
            "named": TrainingRun(
                config="configs/unilm.py:generation", changes=_NAMED, starts_from="pretraining"
            ),
        },
        arms=ARMS,
        measures={
            _UNDERSTOOD: OutcomeMeasure(run="fields", number="fields/accuracy", scale=100.0),
            _GENERATED: OutcomeMeasure(
                run="named", number="named/generation/exact_match", scale=100.0
            ),
        },
        learned=(
            Learned(arm="all", measure=_UNDERSTOOD, than=12.5, what="a constant"),
            Learned(arm="all", measure=_GENERATED, than=12.5, what="a constant"),
        ),
        claims=CLAIMS,
    )
