"""ALBERT by shared parameters, size of embeddings and depth, on generated agreement.

    python -m t5x_like.study albert_parameters

Lan et al. 2019: parameters that all layers share cost some accuracy, most of it by the feed-forward
layers, while shared attention costs least (section 4.5, table 4); embeddings that are smaller than
the layers are as good (section 4.4, table 3); more layers that share their parameters are better,
each doubling by less (appendix, table 11). The text is the language `agreement`
(docs/languages.md), as in bert_sizes.py: by word frequencies a masked token has 3.46 nats. 0.02
nats do not matter.

| the paper | here |
|---|---|
| 12 layers, 768 wide; embeddings of 64 to 768 | 4 layers, 64 wide; embeddings of 16 or 64 |
| 1 to 48 layers, 1024 wide, all shared | 1 to 8 layers, 64 wide, all shared |
| Wikipedia and books, 125,000 batches of 4,096 rows | 1,200 batches of 48 generated rows |
| warmup of 3,125 batches | 400 |
| an average over five tasks | nats of a masked token of held-out text |

First the arms had 800 batches at twice the rate, after a warmup of 100. Then eight layers were
worse than four, by 0.34 nats over three seeds, and embeddings of 16 worse than of 64, by 0.40. All
arms stop near 1.75 nats for a while, and these two left that later or not at all: eight layers also
not in 2,400 batches (four had 1.21 there), but after a warmup of 400 at half the rate (1.45 after
1,000 batches; after a warmup of 100, 1.60). Embeddings of 16 leave it in 2,400 batches at the first
rate (1.43), and with twice the standard deviation at the start hardly in 1,000 (1.71).
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

_TEXT = GeneratedText(language="agreement", kind="albert", size=82)
_CHANGES = {
    **_TEXT.changes(sentences=2),
    "data.objective_settings": {"longest": 1, "sentences": "none", "short_rate": 0.0},
    "model.head": "masked_lm",
    "model.vocab_size": _TEXT.size,
    "model.layers": 4,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.embedding": 64,
    "model.initializer_range": 0.07,  # 0.02 * (768 / 64)^0.5
    "data.lengths": {"inputs": 24},
    "data.batch_size": 48,
    "optimizer.learning_rate": 1e-3,
    "optimizer.warmup_steps": 400,
    "train.steps": 1200,
    "train.log_every": 100,
    "checkpoint.every": 0,
    "evaluate.every": 0,  # at the end
    "evaluate.batches": 40,
}


def _arm(share: str = "all", embedding: int = 64, layers: int = 4) -> Arm:
    settings = {"model.share": share, "model.embedding": embedding, "model.layers": layers}
    return Arm(changes={"pretraining": settings})


_DEPTHS = (1, 2, 4, 8)
ARMS = {
    "not_shared": _arm("none"),
    "shared_attention": _arm("attention"),
    "shared_feed_forward": _arm("feed_forward"),
    **{f"all_shared_{layers}": _arm(layers=layers) for layers in _DEPTHS},
    "embedding_16": _arm(embedding=16),
}


def better(text: str, arm: str, than: str) -> Claim:
    """Return the claim that the loss of an arm is lower than of another."""
    return Claim(text=text, measure="loss", arm=arm, than=than, margin=0.02)


CLAIMS = (
    better("To share all parameters costs something.", "not_shared", "all_shared_4"),
    better(
        "... shared feed-forward layers more than shared attention.",
        "shared_attention",
        "shared_feed_forward",
    ),
    Claim(
        text="Shared attention costs nothing.",
        measure="loss",
        arm="shared_attention",
        than="not_shared",
        within=0.02,
    ),
    Claim(
        text="Embeddings of a quarter of the width are as good.",
        measure="loss",
        arm="embedding_16",
        than="all_shared_4",
        within=0.02,
    ),
    better("Two shared layers are better than one.", "all_shared_2", "all_shared_1"),
    better("Four are better than two.", "all_shared_4", "all_shared_2"),
    better("Eight are better than four.", "all_shared_8", "all_shared_4"),
)


def get_study() -> Study:
    """Return the study."""
    return Study(
        title="ALBERT by its parameters",
        source="Lan et al. 2019, tables 3, 4 and 11",
        needs=_TEXT.needs,
        runs={"pretraining": TrainingRun(config="configs/albert.py:demo", changes=_CHANGES)},
        arms=ARMS,
        measures={
            "loss": OutcomeMeasure(
                run="pretraining", number="agreement/cross_entropy", smaller_is_better=True
            )
        },
        learned=(Learned(arm="not_shared", measure="loss", than=3.46, what="word frequencies"),),
        claims=CLAIMS,
        seeds=range(3),
    )
