"""GPT-2 by size, and by training time, on many generated dialects.

    python -m t5x_like.study gpt2_sizes

Radford et al. 2019, figure 4 and table 3: of four models the larger have the lower perplexity, on
the training text as well as on held-out text and other corpora; all underfit WebText, and improve
with more training time (section 3). The text is the language `dialects` (docs/languages.md): each
of 8 dialects has its own table of the four words that may follow each of 64 words. The
entropy is 1.37 nats a word; by word frequencies a word has 4.16. 0.02 nats do not matter.

| the paper | here |
|---|---|
| 12 to 48 layers, 768 to 1600 wide | 2 layers, 16 to 128 wide |
| WebText | generated documents, 600 batches of 1,024 tokens: none is read twice |
| perplexity of WikiText2, without training on it | perplexity and loss of held-out documents |

With 32 dialects a model 32 wide had learned little more than word frequencies after 500 batches.
This design was tried with the first seed.
"""

from t5x_like.research.studies import (
    Arm,
    Claim,
    Curve,
    GeneratedText,
    Learned,
    OutcomeMeasure,
    Study,
    TrainingRun,
)

TEXT = GeneratedText(language="dialects", kind="unigram", size=120)
CHANGES = {
    **TEXT.changes(dialects=8),
    "model.vocab_size": 220,
    "data.lengths": {"targets": 64},
    "data.batch_size": 16,
    "optimizer.learning_rate": 4e-3,
    "train.log_every": 100,
    "checkpoint.every": 0,
    "evaluate.every": 0,  # at the end
    "evaluate.batches": 60,
}
_STEPS = 600


def _arm(width: int, perplexity: float = 0.0, steps: int = _STEPS) -> Arm:
    changes = {"model.d_model": width, "model.d_ff": 4 * width, "train.steps": steps}
    return Arm(
        changes={"pretraining": changes}, paper={"perplexity": perplexity} if perplexity else {}
    )


ARMS = {
    "width_16": _arm(16, 29.41),
    "width_32": _arm(32, 22.76),
    "width_64": _arm(64, 19.93),
    "width_128": _arm(128, 18.34),
    "width_128_half": _arm(128, steps=_STEPS // 2),
}


def better(text: str, arm: str, than: str) -> Claim:
    """Return the claim that an arm has the lower loss."""
    return Claim(text=text, measure="loss", arm=arm, than=than, margin=0.02)


CLAIMS = (
    better("The second size is better than the first.", "width_32", "width_16"),
    better("The third size is better than the second.", "width_64", "width_32"),
    better("The fourth size is better than the third.", "width_128", "width_64"),
    better("The largest improves with more training.", "width_128", "width_128_half"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="GPT-2 by size and training time",
        source="Radford et al. 2019, figure 4 and table 3",
        needs=TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/gpt2.py:demo", changes=CHANGES)},
        arms=ARMS,
        measures={
            "loss": OutcomeMeasure(
                run="pretraining", number="dialects/cross_entropy", smaller_is_better=True
            ),
            "perplexity": OutcomeMeasure(
                run="pretraining",
                number="dialects/perplexity",
                smaller_is_better=True,
                in_paper="WikiText2",
            ),
        },
        learned=(Learned(arm="width_128", measure="loss", than=4.16, what="word frequencies"),),
        claims=CLAIMS,
        seeds=range(3),
        curve=Curve(
            number="width",
            lines={
                f"{_STEPS} batches": {width: f"width_{width}" for width in (16, 32, 64, 128)},
                f"{_STEPS // 2} batches": {128: "width_128_half"},
            },
        ),
    )
