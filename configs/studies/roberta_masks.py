"""RoBERTa's masks: new ones at each visit of a text, or a fixed number for each text.

    python -m t5x_like.study roberta_masks

Liu et al. 2019, section 4.1, table 1: dynamic masks are as good as ten fixed masks of each text, or
slightly better. The text is the language `agreement` (docs/languages.md), few documents that are
read often: each of its ten masks 10 times, not 4 times as in the paper.

| the paper | here |
|---|---|
| BERT base, each of 10 masks seen 4 times | 2 layers, 64 wide; 300 documents, 100 times |
| SQuAD 2.0, MNLI, SST-2 | nats of a masked token of held-out text; 0.02 of them do not matter |
| only ten fixed masks | also one fixed mask of each text, to see that masks can matter |
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

_TEXT = GeneratedText(language="agreement", kind="byte_bpe", size=383)


def _copies(number: int) -> Arm:
    return Arm(changes={"pretraining": {"data.objective_settings.copies": number}})


CLAIMS = (
    Claim(
        text="Dynamic masks are as good as ten fixed masks, or better.",
        measure="loss",
        arm="dynamic",
        than="static",
        margin=0.02,
    ),
    Claim(
        text="Ten fixed masks are better than one.",
        measure="loss",
        arm="static",
        than="one_mask",
        margin=0.02,
    ),
)


def get_study() -> Study:
    """Return the study."""
    changes = {
        **_TEXT.changes(documents=300, sentences=3),
        "data.objective_settings.format": "doc_sentences",
        "data.lengths": {"inputs": 32},
        "model.vocab_size": 383,
        "model.d_model": 64,
        "model.d_ff": 256,
        "model.initializer_range": 0.07,  # 0.02 * (768 / 64)^0.5
        "train.steps": 1000,
        "evaluate.every": 0,  # at the end
        "evaluate.batches": 0,  # all rows
    }
    return Study(
        title="RoBERTa's masks",
        source="Liu et al. 2019, table 1",
        needs=_TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/roberta.py:demo", changes=changes)},
        arms={"dynamic": _copies(0), "static": _copies(10), "one_mask": _copies(1)},
        measures={
            "loss": OutcomeMeasure(
                run="pretraining", number="agreement/cross_entropy", smaller_is_better=True
            )
        },
        learned=(Learned(arm="dynamic", measure="loss", than=3.46, what="word frequencies"),),
        claims=CLAIMS,
    )
