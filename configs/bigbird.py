"""BigBird, pretrained by masked words of long documents with block-sparse attention.

    python -m t5x_like.train --config=configs/bigbird.py:base --config.workdir=runs/bigbird_base \
        --config.data.vocabulary=vocabulary.model

Sizes: `demo`, `base`, `large`. All but the demo follow the paper (Zaheer et al. 2020, section 4 and
appendix E.1) and, where marked (code), the authors' run_pretraining.py, on C4 instead of its four
corpora, and from random parameters, unless `initialize` names a RoBERTa as in the paper:

| paper | here |
|---|---|
| blocks of 64 tokens: 2 global, 3 neighboring, 3 random ones | model.block, model.random |
| documents of up to 4096 tokens, batches of 256 | data.lengths, data.batch_size |
| batches of 2,048 for the large size | data.batch_size |
| 15% of the tokens; (code) whole words, no next sentence | data.objective=bert |
| Adam, rate 1e-4, warmup of 10,000 steps, linear decay, weight decay 0.01 | optimizer |
| (code) Adam's epsilon 1e-6, no clipping of gradients | optimizer |
| (code) 100,000 steps | train.steps |
| dropout 0.1, also in attention | model.dropout |

To start from a RoBERTa, as in the paper, whose 512 positions are repeated 8 times, with its
vocabulary (the paper uses other ids for its tokens):

    python -m t5x_like.train --config=configs/bigbird.py:base --config.initialize=roberta-base \
        --config.model.vocab_size=50265 --config.data.vocabulary=roberta-base ...

The building blocks of table 1, from the same file:

    --config.model.attention_parts=random, window, 'window|random'; all: dense attention

The demo learns on documentation strings in minutes on 2 CPU cores, in rows of 16 blocks:

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=albert --size=4096 \
        --output=runs/bigbird_demo/vocabulary.model
    python -m t5x_like.train --config=configs/bigbird.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("bigbird", size)
    recipes.masked_language_modeling(config, "bert", length=4096)
    config.data.objective_settings = {"whole_word": True, "next_sentence": False}
    config.data.batch_size = 2048 if size == "large" else 256
    config.train.steps = 100_000
    config.optimizer = {
        "name": "adamw",
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        **recipes.linear(config, 1e-4, warmup_steps=10_000),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("base"),
        vocabulary="runs/bigbird_demo/vocabulary.model",
        positions=64,
        block=4,
        random=1,
    )
    config.data.lengths = {"inputs": 64}
    config.data.batch_size = 32
    config.data.objective_settings.whole_word = False
    config.train.steps = 1500
    # With 8 rows of 256 tokens it learned only token frequencies in 1,500 steps, as with 8 rows of
    # 128 in 2,500.
    config.optimizer.update(
        {"b2": 0.98, "learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)}
    )
    config.evaluate.every = 250
    return config
