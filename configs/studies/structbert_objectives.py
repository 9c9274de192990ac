"""StructBERT without its objectives about words and sentences, on generated events.

    python -m t5x_like.study structbert_objectives

Wang et al. 2019, section 4.3: without the objective about sentences tasks of pairs are worse;
without the objective about words most tasks are worse, those of single sentences most. The text is
the language `events` (docs/languages.md): a document tells three of the six events of one of 4
topics, in the order of the topic. The task `order` has two events of a topic, and asks which comes
first. A constant is right in half of the rows. There are 120 pairs of events, of which 32 labelled
rows have at most 32: the others are known only from the text. The best possible accuracy is 100%.
Two points do not matter.

| the paper | here |
|---|---|
| BERT base | 2 layers, 64 wide, 600 batches of 64 rows, trained by each seed |
| 5% of the tokens are shuffled | 25%: one trigram a row; 5% of a row of 15 tokens are none |
| without one objective, and without both | no words; neither (`no_sentence`) |
| MNLI, SNLI, QQP, SQuAD | `order`, 32 rows, 150 batches of 16 |
| CoLA, SST-2 | left out |

A first arm `structbert` shuffled 5%, so that no trigram was shuffled, and all seeds of it equalled
`no_word`; then it was trained again with 25%. The seeds of the other arms were seen before that.
With shuffled words some of eight seeds learned less about sentences in pretraining: they found 64
to 88% of the three classes, and without shuffled words 86 to 90%.
"""

from typing import Any

from t5x_like.research.studies import (
    Arm,
    Claim,
    GeneratedText,
    Learned,
    OutcomeMeasure,
    Study,
    TrainingRun,
)

_TEXT = GeneratedText(language="events", kind="wordpiece", size=127)
_WORLD: dict[str, Any] = {"topics": 4, "events": 6}
_PRETRAINING = {
    **_TEXT.changes(**_WORLD, chosen=3),
    "model.vocab_size": 128,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.initializer_range": 0.07,  # 0.02 * (768 / 64)^0.5
    "data.lengths": {"inputs": 20},  # a document has 15 tokens
    "data.batch_size": 64,
    "optimizer.learning_rate": 2e-3,
    "train.steps": 600,
    "train.log_every": 100,
    "evaluate.every": 0,
    "evaluate.batches": 10,
}


def _arm(**changes: object) -> Arm:
    settings = {name.replace("__", "."): value for name, value in changes.items()}
    return Arm(changes={"pretraining": settings} if settings else {})


# A fourth of a row of 15 tokens has room for one shuffled trigram, and the paper's 5% for none.
ARMS = {
    "structbert": _arm(data__objective_settings__shuffle_rate=0.25),
    "no_word": _arm(data__objective_settings__shuffle_rate=0.0),
    "no_sentence": _arm(model__head="masked_lm"),
}
CLAIMS = (
    Claim(
        text="The objective about sentences helps a task of pairs.",
        measure="accuracy",
        arm="no_word",
        than="no_sentence",
        margin=2.0,
    ),
    Claim(
        text="The objective about words helps a task of pairs.",
        measure="accuracy",
        arm="structbert",
        than="no_word",
        margin=2.0,
    ),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="StructBERT without its objectives",
        source="Wang et al. 2019, section 4.3",
        needs=_TEXT.needs,
        runs={
            "pretraining": TrainingRun(config="configs/structbert.py:demo", changes=_PRETRAINING),
            "order": _TEXT.fine_tuning("classification", "order", rows=32, steps=150, **_WORLD),
        },
        arms=ARMS,
        measures={"accuracy": OutcomeMeasure(run="order", number="order/accuracy", scale=100.0)},
        learned=(Learned(arm="structbert", measure="accuracy", than=50.0, what="a constant"),),
        claims=CLAIMS,
        seeds=range(3),
    )
