"""XLNet with and without a memory of the preceding text.

    python -m t5x_like.study xlnet_memory

Yang et al. 2019, section 3.4, table 6: without memory XLNet loses 1.1 points on RACE, whose texts
are long, and 0.3 to 0.8 on the other tasks. Both arms predict the same tokens, so their losses can
be compared. The text is the language `events` (docs/languages.md): the sentences of a document have
one subject and tell events in a certain order. The first part of a row, 4 tokens, has less than a
sentence: which of the 16 subjects it has, and which events have been told, stands only in the rows
before it.

| the paper | here |
|---|---|
| 12 layers, 768 wide, 512 tokens, memory of 384 | 2 layers, 64 wide, 12 tokens, memory of 24 |
| RACE, SQuAD 2.0, MNLI, SST-2 | nats of a predicted token; 0.02 of them do not matter |

On documentation the memory lowered the loss by 0.04 +- 0.05 nats. With definitions and questions
(`references`) 16 words after them, and here with an `initializer_range` of 0.02, it made no
difference after 600 batches; with a network 128 wide and batches of 32 rows it made one with one of
two seeds.
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

_TEXT = GeneratedText(language="events", kind="albert", size=59)


def get_study() -> Study:
    """Return the study."""
    changes = {
        **_TEXT.changes(),
        "model.vocab_size": 64,
        "model.d_model": 64,
        "model.d_ff": 256,
        "model.initializer_range": 0.07,  # 0.02 * (768 / 64)^0.5
        "model.memory": 24,
        "data.lengths": {"inputs": 12},
        "data.batch_size": 128,
        "data.objective_settings.reuse": 0.34,
        "train.steps": 600,
        "evaluate.every": 0,  # at the end
        "evaluate.batches": 0,  # all rows
    }
    return Study(
        title="XLNet's memory",
        source="Yang et al. 2019, table 6",
        needs=_TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/xlnet.py:demo", changes=changes)},
        arms={
            "xlnet": Arm(),
            "no_memory": Arm(changes={"pretraining": {"model.memory": 0}}),
        },
        measures={
            "loss": OutcomeMeasure(
                run="pretraining", number="events/cross_entropy", smaller_is_better=True
            ),
        },
        learned=(Learned(arm="no_memory", measure="loss", than=2.8, what="word frequencies"),),
        claims=(
            Claim(text="Memory helps.", measure="loss", arm="xlnet", than="no_memory", margin=0.02),
        ),
    )
