"""From BERT to ELECTRA in four steps: which tokens are predicted, and from which input.

    python -m t5x_like.study electra_objectives

Clark et al. 2020, section 3.5, table 5: between BERT and ELECTRA lie three models. `electra_15` has
ELECTRA's loss only at the masked tokens, `replace_mlm` is BERT with a generator's tokens in place
of [MASK], `all_tokens_mlm` predicts every token of such a text. The paper finds that most of the
gain comes from learning from all tokens. The text is the language `homonyms` (docs/languages.md),
the task `fields`: which of 8 fields a sentence of three words is from, with so few labelled
sentences that half of the words are in none of them.

| the paper | here |
|---|---|
| small models, equal training steps | 2 layers, 128 wide, 500 steps of 32 rows |
| Wikipedia and books | 20,000 generated documents |
| GLUE's score | accuracy on `fields`, 32 rows of training |

A constant is right in 1 of 8 sentences; a word that only one field has is enough to be right.
"""

from t5x_like.studies import (
    Arm,
    Claim,
    GeneratedText,
    Learned,
    OutcomeMeasure,
    Study,
    TrainingRun,
)

_TEXT = GeneratedText(language="homonyms", kind="wordpiece", size=278)
_STEPS = 500
_TUNING = 200
# The objective of an arm, and GLUE's score in the paper.
_OBJECTIVES = {
    "electra": 85.0,
    "all_tokens_mlm": 84.3,
    "replace_mlm": 82.4,
    "electra_15": 82.4,
}


ARMS = {
    **{
        name: Arm(changes={"pretraining": {"model.objective": name}}, paper={"accuracy": score})
        for name, score in _OBJECTIVES.items()
    },
    # The generator alone, of the discriminator's size, is BERT without next sentences.
    "bert": Arm(
        changes={
            "pretraining": {"model.head": "masked_lm", "loss": {"predicted": 0.2}},
        },
        paper={"accuracy": 82.2},
    ),
}


def get_study() -> Study:
    """Return the study."""
    pretraining = {
        **_TEXT.changes(),
        "model.vocab_size": 278,
        "data.lengths": {"inputs": 32},
        "model.initializer_range": 0.05,  # 0.02 * (768 / 128)^0.5
        "optimizer.b2": 0.98,
        "optimizer.learning_rate": 2e-3,
        "train.steps": _STEPS,
        "evaluate.every": 0,  # at the end
    }
    fields = {
        **_TEXT.changes("fields", documents=32, around=1),
        "data.lengths": {"inputs": 12},
        "data.batch_size": 16,
        "optimizer.learning_rate": 5e-4,
        "train.steps": _TUNING,
        "evaluate.every": _TUNING,
        "evaluate.batches": 0,  # all rows
    }
    return Study(
        title="From BERT to ELECTRA",
        source="Clark et al. 2020, table 5",
        needs=_TEXT.needs,
        runs={
            "pretraining": TrainingRun(config="configs/electra.py:demo", changes=pretraining),
            "fields": TrainingRun(
                config="configs/fine_tuning.py:classification",
                changes=fields,
                starts_from="pretraining",
            ),
        },
        arms=ARMS,
        measures={
            "accuracy": OutcomeMeasure(
                run="fields", number="fields/accuracy", scale=100.0, in_paper="GLUE"
            )
        },
        learned=(Learned(arm="bert", measure="accuracy", than=12.5, what="a constant"),),
        claims=CLAIMS,
    )


def _better(text: str, arm: str, than: str) -> Claim:
    return Claim(text=text, measure="accuracy", arm=arm, than=than, margin=2.0)


CLAIMS = (
    _better("ELECTRA is better than BERT.", "electra", "bert"),
    _better("Learning from all tokens matters most.", "electra", "electra_15"),
    _better("A loss at all tokens helps BERT too.", "all_tokens_mlm", "replace_mlm"),
    Claim(
        text="It hardly matters that [MASK] never occurs in fine-tuning.",
        measure="accuracy",
        arm="replace_mlm",
        than="bert",
        within=2.0,
    ),
    _better("Detecting is better than predicting all.", "electra", "all_tokens_mlm"),
)
