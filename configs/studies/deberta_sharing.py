"""DeBERTa v3's comparison at demo size: how generator and discriminator share their embeddings.

    python -m t5x_like.study deberta_sharing --plan
    python -m t5x_like.study deberta_sharing

He et al. 2021, section 3, table 2: sharing embeddings without the discriminator's gradient (GDES)
is better than sharing them with both gradients (ES, as in ELECTRA) or not at all (NES). The paper
compares fine-tuned models; here the discriminator's held-out loss of replaced tokens is compared,
and the generator's loss of masked tokens (figure 1 there): a better generator makes the
discriminator's task harder.
"""

from t5x_like.studies import Arm, Claim, OutcomeMeasure, Study, TrainingRun

ARMS = {
    name: Arm(changes={"pretraining": {"model.sharing": sharing}})
    for name, sharing in {
        "gdes": "gradient_disentangled",
        "es": "embeddings",
        "nes": "none",
    }.items()
}


def _better(text: str, measure: str, arm: str, than: str) -> Claim:
    return Claim(text=text, measure=measure, arm=arm, than=than)


def get_study() -> Study:
    """Return the study."""
    number = "pydocs/{}cross_entropy"
    return Study(
        title="DeBERTa v3: embeddings of generator and discriminator",
        source="He et al. 2021, table 2 and figure 1",
        needs={
            "runs/deberta_demo/vocabulary": (
                "t5x_like.vocabulary --data=data/pydocs.py --kind=byte_bpe --size=4096 "
                "--output=runs/deberta_demo/vocabulary"
            ),
        },
        runs={"pretraining": TrainingRun(config="configs/deberta.py:v3_demo")},
        arms=ARMS,
        measures={
            "generator": OutcomeMeasure(
                run="pretraining", number=number.format(""), smaller_is_better=True
            ),
            "discriminator": OutcomeMeasure(
                run="pretraining", number=number.format("discriminator/"), smaller_is_better=True
            ),
        },
        claims=(
            _better("NES' generator is better than ES'.", "generator", "nes", "es"),
            _better("GDES' generator is better than ES'.", "generator", "gdes", "es"),
            _better("GDES' discriminator is better than NES'.", "discriminator", "gdes", "nes"),
        ),
    )
