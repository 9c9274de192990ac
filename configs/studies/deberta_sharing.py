"""DeBERTa v3: how generator and discriminator share their embeddings, on generated homonyms.

    python -m t5x_like.study deberta_sharing

He et al. 2021, section 3, table 2: sharing embeddings without the discriminator's gradient (GDES)
is better than sharing them with both gradients (ES, as in ELECTRA) or not at all (NES), measured by
fine-tuning. The discriminator's gradient makes the generator worse (figure 1 there).

The text is the language `homonyms` (docs/languages.md). The task `fields` asks from which of 8
fields a sentence of three words is. A constant is right in 1 of 8 sentences, and the labelled rows
are so few that many words are in none of them: what the words of a field have in common must come
from the text. The best possible accuracy is 100%. Two points and 0.02 nats do not matter.

| the paper | here |
|---|---|
| 12 layers, 768 wide; the generator has 6 | 2 layers, 64 wide; the generator has 1 |
| Wikipedia and books, 125,000 batches of 2,048 rows | generated, 400 batches of 96 rows |
| MNLI, SQuAD 2.0 | `fields`, 32 rows, 200 batches of 16 |
| curves of the generator's loss | nats of a masked token of held-out text |

The loss of the discriminators is not judged: a better generator makes their task harder. The design
was tried with the first seed. Without the generator's gradient the discriminator learns little of
what the words of a field have in common; with both gradients (ES) the seeds differ by 9 points, so
that after five it is open whether GDES is better.
"""

from t5x_like.research.studies import (
    Arm,
    Claim,
    GeneratedText,
    Learned,
    OutcomeMeasure,
    Study,
    TrainingRun,
)

_TEXT = GeneratedText(language="homonyms", kind="albert", size=140)
_PRETRAINING = {
    **_TEXT.changes(sentences=1),
    "model.vocab_size": _TEXT.size,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.initializer_range": 0.07,  # 0.02 * (768 / 64)^0.5
    "data.lengths": {"inputs": 12},
    "data.batch_size": 96,
    "train.steps": 400,
    "train.log_every": 100,
    "evaluate.every": 0,
    "evaluate.batches": 0,
}
ARMS = {
    name: Arm(changes={"pretraining": {"model.sharing": sharing}})
    for name, sharing in {
        "gdes": "gradient_disentangled",
        "es": "embeddings",
        "nes": "none",
    }.items()
}


def _better(text: str, measure: str, arm: str, than: str) -> Claim:
    margin = 2.0 if measure == "accuracy" else 0.02
    return Claim(text=text, measure=measure, arm=arm, than=than, margin=margin)


CLAIMS = (
    _better("NES' generator is better than ES'.", "generator", "nes", "es"),
    _better("GDES' generator is better than ES'.", "generator", "gdes", "es"),
    _better("Fine-tuned, GDES is better than NES.", "accuracy", "gdes", "nes"),
    _better("Fine-tuned, GDES is better than ES.", "accuracy", "gdes", "es"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="DeBERTa v3: embeddings of generator and discriminator",
        source="He et al. 2021, table 2 and figure 1",
        needs=_TEXT.needs,
        runs={
            "pretraining": TrainingRun(config="configs/deberta.py:v3_demo", changes=_PRETRAINING),
            "fields": _TEXT.fine_tuning("classification", "fields", rows=32, steps=200, around=1),
        },
        arms=ARMS,
        measures={
            "generator": OutcomeMeasure(
                run="pretraining", number="homonyms/cross_entropy", smaller_is_better=True
            ),
            "accuracy": OutcomeMeasure(run="fields", number="fields/accuracy", scale=100.0),
        },
        learned=(Learned(arm="gdes", measure="accuracy", than=12.5, what="a constant"),),
        claims=CLAIMS,
    )
