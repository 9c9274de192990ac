"""XLNet without spans or text in both directions, and BERT, measured by fine-tuning.

    python -m t5x_like.study xlnet_parts

Yang et al. 2019, section 3.4, table 6: spans and text in both directions help by 0.3 to 0.7 points
on RACE, and XLNet is better than BERT by 2. The pretraining losses of arms that predict other
tokens cannot be compared, so all arms are compared by fine-tuning, as in the paper. The text is the
language `names` (docs/languages.md), whose names have 2 to 4 words: a single predicted word follows
from the rest of its name, a whole name only from the topic of the words around it. The task
`topics` asks for the topic of a name; 6 of 10 names are in no labelled row. A constant is right in
1 of 12.

| the paper | here |
|---|---|
| 12 layers, 768 wide, 512 tokens, memory of 384 | 2 layers, 64 wide, 32 tokens, memory of 16 |
| RACE, SQuAD 2.0, MNLI, SST-2 | accuracy on `topics`, 24 labelled names; 1 point does not matter |
| BERT on the same data | BERT of the same size, masking 15% of the same rows of 32 tokens |
| without memory; next sentences | the study xlnet_memory; left out |

On documentation and tasks of PyGLUE no difference exceeded chance, nor did one with 96 names, 48 of
them labelled, after 400 batches: all arms were at 43 to 45% over three seeds, and a network without
pretraining at 39% with one. So half of the names are left, the arms are trained for
longer, and a first claim is that pretraining helps. Without it only the topics of the labelled
names are known, 43% of the held-out rows.
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

_TEXT = GeneratedText(language="names", kind="albert", size=187)
_NAMES = 48
_STEPS = 100
_PRETRAINING = {
    **_TEXT.changes(names=_NAMES),
    "model.vocab_size": 192,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.initializer_range": 0.07,  # 0.02 * (768 / 64)^0.5
    "model.memory": 16,
    "data.lengths": {"inputs": 32},
    "train.steps": 800,
    "evaluate.every": 0,
}
_BERT = {
    **_TEXT.changes(names=_NAMES),
    "train.phases": (),
    "phases": {},
    "model.head": "masked_lm",
    "model.vocab_size": _TEXT.size,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.initializer_range": 0.07,
    "data.objective_settings.next_sentence": False,
    "data.lengths": {"inputs": 32},
    "train.steps": 800,
    "evaluate.every": 0,
}
_TOPICS = {
    **_TEXT.changes("topics", documents=_NAMES // 2, names=_NAMES),
    "data.lengths": {"inputs": 8},
    "data.batch_size": 16,
    "train.steps": _STEPS,
    "evaluate.every": _STEPS,
    "optimizer.learning_rate": 1e-3,
}


def _arm(race: float, **objective: object) -> Arm:
    changes = {f"data.objective_settings.{name}": value for name, value in objective.items()}
    return Arm(
        changes={"pretraining": changes} if changes else {},
        leaves_out=("bert",),
        paper={"accuracy": race},
    )


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="XLNet without its parts",
        source="Yang et al. 2019, table 6",
        needs=_TEXT.needs,
        runs={
            "pretraining": TrainingRun(config="configs/xlnet.py:demo", changes=_PRETRAINING),
            "bert": TrainingRun(config="configs/bert.py:demo", changes=_BERT),
            "topics": TrainingRun(
                config="configs/fine_tuning.py:classification",
                changes=_TOPICS,
                starts_from="pretraining",
            ),
        },
        arms={
            "xlnet": _arm(66.66),
            "no_spans": _arm(65.95, form="tail"),
            "one_direction": _arm(66.34, backward=0.0),
            "bert": Arm(
                starts_from={"topics": "bert"},
                leaves_out=("pretraining",),
                paper={"accuracy": 64.3},
            ),
            "no_pretraining": Arm(leaves_out=("pretraining", "bert")),
        },
        measures={
            "accuracy": OutcomeMeasure(
                run="topics", number="topics/accuracy", scale=100.0, in_paper="RACE"
            ),
        },
        learned=(Learned(arm="xlnet", measure="accuracy", than=8.3, what="a constant"),),
        claims=CLAIMS,
    )


def _helps(text: str, without: str) -> Claim:
    return Claim(text=text, measure="accuracy", arm="xlnet", than=without, margin=1.0)


CLAIMS = (
    _helps("Pretraining helps.", "no_pretraining"),
    _helps("XLNet is better than BERT.", "bert"),
    _helps("Spans help.", "no_spans"),
    _helps("Both directions help.", "one_direction"),
)
