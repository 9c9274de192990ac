"""BERT by size, on generated agreement: table 6 of Devlin et al. 2018.

    python -m t5x_like.study bert_sizes

Devlin et al. 2018, section 5.2, table 6: of six models each with more layers, heads or width has a
lower perplexity of masked tokens, and is better on all tasks, even on small ones. The text is the
language `agreement` (docs/languages.md): the number of a noun or verb is given by words up to 20
words before or after it, over clauses within clauses. By word frequencies a masked token has 3.46
nats. 0.02 nats do not matter.

| the paper | here |
|---|---|
| 3 to 24 layers, 768 or 1024 wide, 3 to 16 heads | 1 to 6 layers, 48 or 64 wide, 1 to 4 heads |
| Wikipedia and books, a million batches | generated sentences, 800 batches of 48 rows |
| perplexity, MNLI, MRPC, SST-2 | perplexity and nats of a masked token of held-out text |

That six layers are worse than four depends on the learning rate. With the first two seeds, six are
also worse after 1,600 batches (1.23 nats, four 1.18), but with half of the rate, after 800 batches
and for both sizes worse than with the whole, they are equal (1.42 nats).
"""

import functools

from t5x_like.research.studies import (
    Arm,
    Claim,
    GeneratedText,
    Learned,
    OutcomeMeasure,
    Study,
    TrainingRun,
)

_TEXT = GeneratedText(language="agreement", kind="wordpiece", size=148)
_CHANGES = {
    **_TEXT.changes(sentences=2),
    "train.phases": (),
    "phases": {},
    "model.head": "masked_lm",
    "model.vocab_size": _TEXT.size,
    "data.objective_settings.next_sentence": False,
    "data.lengths": {"inputs": 24},
    "data.batch_size": 48,
    "optimizer.learning_rate": 2e-3,
    "train.steps": 800,
    "train.log_every": 100,
    "checkpoint.every": 0,
    "evaluate.every": 0,  # at the end
    "evaluate.batches": 40,
}


def _arm(layers: int, width: int, heads: int, perplexity: float) -> Arm:
    settings = {
        "model.layers": layers,
        "model.d_model": width,
        "model.d_ff": 4 * width,
        "model.heads": heads,
        "model.initializer_range": 0.02 * (768 / width) ** 0.5,
    }
    return Arm(changes={"pretraining": settings}, paper={"perplexity": perplexity})


# The paper's layers divided by 3 or 4, and its widths by 16.
ARMS = {
    "1_layer": _arm(1, 48, 4, 5.84),
    "2_layers_1_head": _arm(2, 48, 1, 5.24),
    "2_layers": _arm(2, 48, 4, 4.68),
    "4_layers": _arm(4, 48, 4, 3.99),
    "4_layers_wide": _arm(4, 64, 4, 3.54),
    "6_layers_wide": _arm(6, 64, 4, 3.23),
}

_better = functools.partial(Claim, measure="loss", margin=0.02)

CLAIMS = (
    _better("Two layers are better than one.", "2_layers", "1_layer"),
    _better("Several heads are better than one.", "2_layers", "2_layers_1_head"),
    _better("Four layers are better than two.", "4_layers", "2_layers"),
    _better("Four wider layers are better than four.", "4_layers_wide", "4_layers"),
    _better("Six wider layers are better than four.", "6_layers_wide", "4_layers_wide"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="BERT by size",
        source="Devlin et al. 2018, table 6",
        needs=_TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/bert.py:demo", changes=_CHANGES)},
        arms=ARMS,
        measures={
            "loss": OutcomeMeasure(
                run="pretraining", number="agreement/cross_entropy", smaller_is_better=True
            ),
            "perplexity": OutcomeMeasure(
                run="pretraining",
                number="agreement/perplexity",
                smaller_is_better=True,
                in_paper="perplexity",
            ),
        },
        learned=(Learned(arm="4_layers", measure="loss", than=3.46, what="word frequencies"),),
        claims=CLAIMS,
        seeds=range(5),
    )
