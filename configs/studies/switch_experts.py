"""Switch Transformer beside a dense network of the same FLOPs per token, on many dialects.

    python -m t5x_like.study switch_experts

Fedus, Zoph and Shazeer 2022, figures 1 and 4: at equal FLOPs per token more experts give a lower
loss after the same number of steps. The text is the language `dialects` (docs/languages.md): each
of 32 dialects has its own table of the words that may follow a word, and a document uses one table,
so experts can divide the dialects among them.

| the paper | here |
|---|---|
| T5 base, experts in every other layer | the demo: in one layer of each half |
| 1 (dense), 16 to 256 experts | 1, 8 and 32 experts |
| C4, span corruption | generated dialects, span corruption, 1,500 steps |
| negative log perplexity | the loss of held-out rows |
"""

from t5x_like.studies import Arm, Claim, GeneratedText, OutcomeMeasure, Study, TrainingRun

_TEXT = GeneratedText(language="dialects", kind="unigram", size=120)


def _experts(number: int) -> Arm:
    return Arm(changes={"pretraining": {"model.experts": number}})


def get_study() -> Study:
    """Return the study."""
    changes = {
        **_TEXT.changes(),
        "model.vocab_size": 220,
        "data.lengths": {"inputs": 48, "targets": 16},
        "data.batch_size": 16,
        "train.steps": 1500,
        "evaluate.every": 0,  # at the end
    }
    return Study(
        title="Experts beside a dense network",
        source="Fedus, Zoph and Shazeer 2022, figure 4",
        needs=_TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/switch.py:demo", changes=changes)},
        arms={"dense": _experts(1), "experts_8": _experts(8), "experts_32": _experts(32)},
        measures={
            "loss": OutcomeMeasure(
                run="pretraining", number="dialects/cross_entropy", smaller_is_better=True
            )
        },
        claims=(
            Claim(
                text="Eight experts are better than a dense network.",
                measure="loss",
                arm="experts_8",
                than="dense",
            ),
            Claim(
                text="32 experts are better than eight.",
                measure="loss",
                arm="experts_32",
                than="experts_8",
            ),
        ),
    )
