"""The Transformer's variations: heads, keys, layers, widths, dropout, positions.

    python -m t5x_like.study transformer_sizes

Vaswani et al. 2017, section 6.2, table 3: one head is worse than several, and so are too many;
small keys hurt; more layers and wider ones help; dropout helps; learned positions are as good as
sinusoids. The paper gives BLEU and perplexity on newstest2013. Here the language is `dictionary`
(docs/languages.md), whose translations are certain: the perplexity of a translator who knows all
words is 1. The 200 pairs for training are few, so that an arm that learns them by heart is worse.

| the paper | here |
|---|---|
| base: 6 layers, 512 wide, 8 heads of 64 | 2 layers, 128 wide, 4 heads of 32 |
| 100,000 steps on 4.5 million sentence pairs | 200 steps of 16 rows of about 6 pairs; 200 pairs |
| perplexity of a word piece, base 4.92 | perplexity of a word, 2,000 held-out pairs |
| label smoothing 0.1 | none |

A difference of 0.02 does not matter; it is 2% of the perplexity, as much as between 16 and 32 heads
in the paper. With 20,000 pairs all arms but two came within 0.02 of a perplexity of 1 after 150
steps, and three of these eight claims could not be told apart; 500 pairs were still too many. The
200 pairs were chosen with one seed of four arms. Four seeds were judged with the interval of a
fixed number before `--until_decided` added five more for the claims that were open. One head was
better than four: each target word is the translation of one source word, so attention to one
position is enough.
"""

import functools
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

_TEXT = GeneratedText(language="dictionary", kind="unigram", size=251)
_STEPS = 200


def _arm(perplexity: float, **model: Any) -> Arm:
    changes = {f"model.{name}": value for name, value in model.items()}
    return Arm(changes={"training": changes}, paper={"perplexity": perplexity})


ARMS = {
    "base": _arm(4.92),
    "one_head": _arm(5.29, heads=1, d_k=128, d_v=128),
    "many_heads": _arm(5.01, heads=16, d_k=8, d_v=8),
    "small_keys": _arm(5.16, d_k=4),
    "one_layer": _arm(6.11, layers=1),
    "narrow": _arm(5.75, d_model=64, d_k=16, d_v=16),
    "small_feed_forward": _arm(5.12, d_ff=128),
    "no_dropout": _arm(5.77, dropout=0.0),
    "learned_positions": _arm(4.92, position_scheme="learned"),
}


def get_study() -> Study:
    """Return the study."""
    changes = {
        **_TEXT.changes("pairs", documents=200),
        "model.vocab_size": 351,
        "data.lengths": {"inputs": 64, "targets": 64},
        "train.steps": _STEPS,
        "optimizer.warmup_steps": 100,
        "loss.label_smoothing": 0.0,
        "optimizer.learning_rate": 0.02,  # peak 1.2e-3; at four times as much some arms diverge
        "evaluate.every": 0,  # at the end
        "evaluate.batches": 0,  # all rows
    }
    return Study(
        title="Variations of the Transformer",
        source="Vaswani et al. 2017, table 3",
        needs=_TEXT.needs,
        runs={"training": TrainingRun(config="configs/transformer.py:demo", changes=changes)},
        arms=ARMS,
        measures={
            "perplexity": OutcomeMeasure(
                run="training",
                number="pairs/perplexity",
                smaller_is_better=True,
                in_paper="perplexity",
            )
        },
        learned=(
            Learned(arm="base", measure="perplexity", than=20.0, what="the frequencies of words"),
        ),
        claims=CLAIMS,
        seeds=range(4),
    )


_better = functools.partial(Claim, measure="perplexity", margin=0.02)

CLAIMS = (
    _better("Several heads are better than one.", "base", "one_head"),
    _better("Too many heads are worse.", "base", "many_heads"),
    _better("Small keys hurt.", "base", "small_keys"),
    _better("More layers are better.", "base", "one_layer"),
    _better("Wider layers are better.", "base", "narrow"),
    _better("A wider feed-forward layer is better.", "base", "small_feed_forward"),
    _better("Dropout helps.", "base", "no_dropout"),
    Claim(
        text="Learned positions are as good.",
        measure="perplexity",
        arm="learned_positions",
        than="base",
        within=0.05,
    ),
)
