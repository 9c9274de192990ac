"""BERT's mixtures of masks, fine-tuned and as features, on generated homonyms.

    python -m t5x_like.study bert_masks

Devlin et al. 2018, appendix C.2, table 8: of the tokens to predict, 80% become [MASK], 10% a
random token and 10% stay. Fine-tuning is robust to other mixtures. With the features of a frozen
network only [MASK] is worse, since the network has never read the text that it is then given, and
only random tokens are worse, too.

The text is the language `homonyms` (docs/languages.md); the task `tags` marks an ambiguous word
with its meaning, and the words around it with 0. A constant is right in 2/3 of the tags of a row of
three words, the word itself gives 5/6, and any of its neighbours the rest. Two points do not matter
after fine-tuning, and one point with features.

| the paper | here |
|---|---|
| BERT base | 2 layers, 64 wide, 400 batches of 96 rows, trained by each seed |
| MNLI, NER of CoNLL-2003 | `tags`, 1,000 rows |
| features: the last four layers | the weighted sum of both layers |
| features: into a biLSTM of two layers, 768 wide | the same, 64 wide; 1,200 batches |

The verdicts are from networks that have learned the task: all are right in 100% of the rows. With
the first seed, after 150 batches of fine-tuning instead of 400, they were not: BERT's mixture was
at 91%, only random tokens at 98% and only [MASK] at 100%, so after that time the claims would not
have held. The biLSTM over features knows no more than the word itself for some hundred batches, and
longest after pretraining with only random tokens: with the first seed it was at 89% after 600
batches, when BERT's mixture had been right in all training rows since 400. In an earlier run of
four of the mixtures, one of three seeds was still at 93% after 1,200. Without the biLSTM, a layer
of tags could hardly read the meaning from the frozen features: on average it was one to three
points better than the word itself, and three seeds did not tell the arms apart. With three
sentences a row, 500 batches had hardly begun to learn from random tokens; on the task `fields`
BERT's mixture was right in all rows.
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

_TEXT = GeneratedText(language="homonyms", kind="wordpiece", size=278)
_PRETRAINING = {
    **_TEXT.changes(sentences=1),
    "train.phases": (),
    "phases": {},
    "model.head": "masked_lm",
    "model.vocab_size": _TEXT.size,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.initializer_range": 0.07,  # 0.02 * (768 / 64)^0.5
    "data.objective_settings.next_sentence": False,
    "data.lengths": {"inputs": 12},
    "data.batch_size": 96,
    "train.steps": 400,
    "train.log_every": 100,
    "evaluate.every": 0,
    "evaluate.batches": 1,
}


_FROZEN = {
    "optimizer.learning_rate": 3e-3,
    "optimizer.frozen": ("embeddings", "encoder"),
    "model.layer_features": "weighted_all",
    "model.lstm_layers": 2,
    "model.lstm_width": 64,
}
RUNS = {
    "pretraining": TrainingRun(config="configs/bert.py:demo", changes=_PRETRAINING),
    "tuned": _TEXT.fine_tuning("tagging", "tags", rows=1000, steps=400, around=1),
    "features": _TEXT.fine_tuning(
        "tagging", "tags", rows=1000, steps=1200, changes=_FROZEN, around=1
    ),
}


def _arm(same: int, random: int, tuned: float, features: float) -> Arm:
    rates = {"kept_rate": same / 100, "random_rate": random / 100}
    changes = {f"data.objective_settings.{name}": rate for name, rate in rates.items()}
    return Arm(changes={"pretraining": changes}, paper={"tuned": tuned, "features": features})


# Percentages of [MASK], of the same token, and of random tokens.
ARMS = {
    "80_10_10": _arm(10, 10, 95.4, 94.9),
    "100_0_0": _arm(0, 0, 94.9, 94.0),
    "80_0_20": _arm(0, 20, 95.2, 94.6),
    "80_20_0": _arm(20, 0, 95.2, 94.7),
    "0_20_80": _arm(20, 80, 94.8, 94.6),
    "0_0_100": _arm(0, 100, 94.9, 94.6),
}


def _robust(text: str, than: str) -> Claim:
    sentence = f"Fine-tuning is robust: {text}."
    return Claim(text=sentence, measure="tuned", arm="80_10_10", than=than, within=2.0)


CLAIMS = (
    _robust("only [MASK]", "100_0_0"),
    _robust("no token stays", "80_0_20"),
    _robust("no random tokens", "80_20_0"),
    _robust("no [MASK]", "0_20_80"),
    _robust("only random tokens", "0_0_100"),
    Claim(
        text="Features: only [MASK] is worse.",
        measure="features",
        arm="80_10_10",
        than="100_0_0",
        margin=1.0,
    ),
    Claim(
        text="Features: only random tokens are worse.",
        measure="features",
        arm="80_10_10",
        than="0_0_100",
        margin=1.0,
    ),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="BERT's mixtures of masks",
        source="Devlin et al. 2018, table 8",
        needs=_TEXT.needs,
        runs=RUNS,
        arms=ARMS,
        measures={
            name: OutcomeMeasure(run=name, number="tags/accuracy", scale=100.0, in_paper="NER")
            for name in ("tuned", "features")
        },
        learned=(Learned(arm="80_10_10", measure="tuned", than=83.3, what="the word itself"),),
        claims=CLAIMS,
        seeds=range(3),
    )
