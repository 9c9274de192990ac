"""DeBERTa's ablation: without the mask decoder, without terms of the attention scores.

    python -m t5x_like.study deberta_parts --plan
    python -m t5x_like.study deberta_parts

He et al. 2020, section 5.2, table 4: each part helps, and several help more. The paper compares
fine-tuned models; here the held-out loss of masked tokens is compared, on the language `agreement`
(docs/languages.md): what a masked word can be depends on words before and after it, and on how far
away they are.

| the paper | here |
|---|---|
| base: 12 layers, 768 wide, Wikipedia and books | 2 layers, 128 wide, 20,000 generated documents |
| fine-tuned on MNLI, SQuAD and RACE | nats of a masked token; 0.02 of them do not matter |

On documentation strings four of the five claims could not be told apart with three seeds: the
standard deviation over seeds, 0.01 to 0.06 nats, was as large as the differences.
"""

from t5x_like.studies import Arm, Claim, GeneratedText, OutcomeMeasure, Study, TrainingRun

_TEXT = GeneratedText(language="agreement", kind="byte_bpe", size=383)
_STEPS = 500


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
    return Claim(text=text, measure="loss", arm=arm, than=than, margin=0.02)


def get_study() -> Study:
    """Return the study."""
    changes = {
        **_TEXT.changes(),
        "model.vocab_size": 383,
        "model.initializer_range": 0.05,  # 0.02 * (768 / 128)^0.5
        "train.steps": _STEPS,
        "evaluate.every": 0,  # at the end
        "evaluate.batches": 0,  # all rows
    }
    return Study(
        title="DeBERTa without its parts",
        source="He et al. 2020, table 4",
        needs=_TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/deberta.py:demo", changes=changes)},
        arms=ARMS,
        measures={
            "loss": OutcomeMeasure(
                run="pretraining", number="agreement/cross_entropy", smaller_is_better=True
            )
        },
        claims=(
            _better("The mask decoder helps.", "deberta", "no_mask_decoder"),
            _better("Content to position helps.", "deberta", "no_c2p"),
            _better("Position to content helps.", "deberta", "no_p2c"),
            _better("Two are worse than one (c2p).", "no_mask_decoder", "no_mask_decoder_no_c2p"),
            _better("Two are worse than one (p2c).", "no_mask_decoder", "no_mask_decoder_no_p2c"),
        ),
    )
