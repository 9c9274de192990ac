"""RoBERTa's batch sizes after the same number of rows, each at its best learning rate.

    python -m t5x_like.study roberta_batches

Liu et al. 2019, section 4.3, table 3: after the same passes over the text larger batches have a
lower perplexity, 2,000 rows the lowest. The rate is tuned for each size, as there. The text is the
language `agreement` (docs/languages.md).

| the paper | here |
|---|---|
| BERT base; 256, 2,000 or 8,000 rows | 2 layers, 64 wide; 16, 64 or 256 rows |
| 1 million, 125,000 or 31,000 batches | 3,000, 750 or 187 |
| perplexity of held-out text | nats of a masked token of held-out text; 0.02 do not matter |

With the first seed the losses were, by rate: 16 rows, 1.29 (1e-3), 1.17 (2e-3), 1.19 (4e-3); 64
rows, 1.42 (2e-3), 1.21 (4e-3), 1.22 (8e-3), 1.96 (16e-3); 256 rows, 1.89 (4e-3), 1.70 (8e-3), 2.74
(16e-3). The paper has 160 to 330 times as many batches of each size.
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

_TEXT = GeneratedText(language="agreement", kind="byte_bpe", size=383)
_ROWS = 48_000


def _batches(size: int, *, rate: float, perplexity: float) -> Arm:
    steps = _ROWS // size
    changes = {
        "data.batch_size": size,
        "train.steps": steps,
        "optimizer.warmup_steps": steps // 16,
        "optimizer.learning_rate": rate,
    }
    return Arm(changes={"pretraining": changes}, paper={"perplexity": perplexity})


_better = functools.partial(Claim, measure="loss", margin=0.02)

CLAIMS = (
    _better("4 times the batch is better.", "rows_64", "rows_16"),
    _better("16 times the batch is better, too.", "rows_256", "rows_16"),
    _better("... but not as good as 4 times.", "rows_64", "rows_256"),
)


def get_study() -> Study:
    """Return the study."""
    changes = {
        **_TEXT.changes(sentences=3),
        "data.objective_settings.format": "doc_sentences",
        "data.lengths": {"inputs": 32},
        "model.vocab_size": _TEXT.size,
        "model.d_model": 64,
        "model.d_ff": 256,
        "model.initializer_range": 0.07,  # 0.02 * (768 / 64)^0.5
        "train.log_every": 100,
        "evaluate.every": 0,  # at the end
        "evaluate.batches": 0,  # all rows
    }
    measures = {
        name: OutcomeMeasure(
            run="pretraining", number=f"agreement/{number}", smaller_is_better=True, in_paper=paper
        )
        for name, number, paper in (
            ("loss", "cross_entropy", ""),
            ("perplexity", "perplexity", "perplexity"),
        )
    }
    return Study(
        title="RoBERTa's batch sizes",
        source="Liu et al. 2019, table 3",
        needs=_TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/roberta.py:demo", changes=changes)},
        arms={
            "rows_16": _batches(16, rate=2e-3, perplexity=3.99),
            "rows_64": _batches(64, rate=4e-3, perplexity=3.68),
            "rows_256": _batches(256, rate=8e-3, perplexity=3.77),
        },
        measures=measures,
        learned=(Learned(arm="rows_16", measure="loss", than=3.46, what="word frequencies"),),
        claims=CLAIMS,
        seeds=range(3),
    )
