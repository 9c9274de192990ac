"""GPT without pretraining, and without the language model as an auxiliary loss.

    python -m t5x_like.study gpt_transfer

Radford et al. 2018, table 5: without pretraining the average score falls by 14.8 points; without
the auxiliary loss it falls on the larger data sets and not on the smaller ones. Here the task is
`fields` of the language `homonyms` (docs/languages.md): which of 8 fields a sentence of three words
is from. A constant is right in 1 of 8 sentences, and each word that only one field has is enough to
be always right. The labelled sentences are so few that a fifth of the words are in none of them:
what the words of a field have in common must come from the text.

| the paper | here |
|---|---|
| 12 layers, 768 wide, BooksCorpus | 2 layers, 128 wide, 20,000 generated documents |
| nine tasks, the score's average | accuracy on `fields`, 64 rows of training |
| an LSTM instead of the Transformer | left out |
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

_TEXT = GeneratedText(language="homonyms", kind="gpt_bpe", size=275)
_STEPS = 100


def get_study() -> Study:
    """Return the study."""
    pretraining = {
        **_TEXT.changes(),
        "model.vocab_size": 275,
        "data.lengths": {"targets": 64},
        "data.batch_size": 32,
        "evaluate.every": 0,
    }
    fine_tuning = {
        **_TEXT.changes("fields", documents=64, around=1),
        "data.lengths": {"inputs": 32},
        "data.batch_size": 16,
        "train.steps": _STEPS,
        "evaluate.every": _STEPS,
        "optimizer.learning_rate": 1e-3,
    }
    return Study(
        title="GPT without pretraining and without the auxiliary loss",
        source="Radford et al. 2018, table 5",
        needs=_TEXT.needs,
        runs={
            "pretraining": TrainingRun(config="configs/gpt.py:demo", changes=pretraining),
            "fields": TrainingRun(
                config="configs/gpt.py:classification",
                changes=fine_tuning,
                starts_from="pretraining",
            ),
        },
        arms=ARMS,
        measures={
            "accuracy": OutcomeMeasure(
                run="fields", number="fields/accuracy", scale=100.0, in_paper="average score"
            )
        },
        learned=(Learned(arm="gpt", measure="accuracy", than=12.5, what="a constant"),),
        claims=CLAIMS,
    )


ARMS = {
    "gpt": Arm(paper={"accuracy": 74.7}),
    "no_auxiliary": Arm(changes={"fields": {"loss.auxiliary": 0.0}}, paper={"accuracy": 75.0}),
    "no_pretraining": Arm(leaves_out=("pretraining",), paper={"accuracy": 59.9}),
}
CLAIMS = (
    Claim(text="Pretraining helps.", measure="accuracy", arm="gpt", than="no_pretraining"),
    Claim(
        text="With little data the auxiliary loss does not matter.",
        measure="accuracy",
        arm="gpt",
        than="no_auxiliary",
        within=3.0,
    ),
)
