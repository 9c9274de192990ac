"""DeBERTa's ablation at demo size: without the mask decoder, without terms of the attention scores.

    python -m t5x_like.study deberta_parts --plan
    python -m t5x_like.study deberta_parts

He et al. 2020, section 5.2, table 4: each part helps, and several help more. The paper compares
fine-tuned models; here the held-out loss of masked tokens is compared.
"""

from t5x_like.studies import Arm, Claim, OutcomeMeasure, Study, TrainingRun


def _arm(**model: object) -> Arm:
    changes = {f"model.{name}": value for name, value in model.items()}
    return Arm(changes={"pretraining": changes} if changes else {})


ARMS = {
    "deberta": _arm(),
    "no_mask_decoder": _arm(mask_decoder=False),
    "no_c2p": _arm(terms="p2c"),
    "no_p2c": _arm(terms="c2p"),
    "no_mask_decoder_no_c2p": _arm(mask_decoder=False, terms="p2c"),
    "no_mask_decoder_no_p2c": _arm(mask_decoder=False, terms="c2p"),
}


def _better(text: str, arm: str, than: str) -> Claim:
    return Claim(text=text, measure="loss", arm=arm, than=than)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="DeBERTa without its parts",
        source="He et al. 2020, table 4",
        needs={
            "runs/deberta_demo/vocabulary": (
                "t5x_like.vocabulary --data=data/pydocs.py --kind=byte_bpe --size=4096 "
                "--output=runs/deberta_demo/vocabulary"
            ),
        },
        runs={"pretraining": TrainingRun(config="configs/deberta.py:demo")},
        arms=ARMS,
        measures={
            "loss": OutcomeMeasure(run="pretraining", number="pydocs/loss", smaller_is_better=True)
        },
        claims=(
            _better("The mask decoder helps.", "deberta", "no_mask_decoder"),
            _better("Content to position helps.", "deberta", "no_c2p"),
            _better("Position to content helps.", "deberta", "no_p2c"),
            _better("Two are worse than one (c2p).", "no_mask_decoder", "no_mask_decoder_no_c2p"),
            _better("Two are worse than one (p2c).", "no_mask_decoder", "no_mask_decoder_no_p2c"),
        ),
    )
