"""ALBERT, pretrained by masked n-grams and the order of two segments.

    python -m t5x_like.train --config=configs/albert.py:base --config.workdir=runs/albert_base \
        --config.data.vocabulary=vocabulary.model

Sizes: `demo`, `base`, `large`, `xlarge`, `xxlarge`. All but the demo follow the paper (Lan et al.
2019, section 4.1), on C4 instead of the BooksCorpus and Wikipedia. Rows marked (code) are from the
authors' code:

| section 4.1 | here |
|---|---|
| 4096 sequences of up to 512 tokens, 125,000 steps | data.batch_size, data.lengths, train.steps |
| LAMB, learning rate 0.00176 | optimizer |
| (code) warmup of 3,125 steps, linear decay, weight decay 0.01, gradient norm 1 | optimizer |
| SentencePiece, 30,000 pieces | data.vocabulary; `vocabulary --kind=albert` |
| masked n-grams of up to 3 words, probability proportional to 1/n | data.objective=albert |
| 10% of the sequences randomly shorter | data.objective_settings.short_rate |
| no dropout (v2, and xxlarge of v1; otherwise 0.1) | model.dropout |

The comparisons of sections 4.4 to 4.6, from the same file:

    --config.model.embedding=64, 128, 256, 768
    --config.model.share=all, attention, feed_forward, none      --config.model.groups=1, 2, 3, ...
    --config.data.objective_settings.sentences=order, next
    --config.data.objective_settings.sentences=none --config.model.head=masked_lm

The demo learns the order of sentences of documentation strings in minutes on 2 CPU cores, by AdamW
in small batches. On the held-out split (--config.evaluate.batches=0) the loss of the order falls
from log 2 = 0.69 to 0.51 nats, an accuracy of 73%; in the first thousand steps it hardly moves. The
loss of masked tokens falls from log 4096 = 8.3 to 5.97 (unigram entropy of the targets: 5.88):

    python -m t5x_like.vocabulary --data=data/pydocs.py --set prose=True --kind=albert \
        --size=4096 --output=runs/albert_demo/vocabulary.model
    python -m t5x_like.train --config=configs/albert.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("albert", size)
    recipes.masked_language_modeling(config, "albert", length=512)
    config.data.objective_settings = {"longest": 3, "sentences": "order", "short_rate": 0.1}
    config.data.batch_size = 4096
    config.train.steps = 125_000
    config.optimizer = {
        "name": "lamb",
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        **recipes.linear(config, 0.00176, warmup_steps=3_125),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("base"),
        vocabulary="runs/albert_demo/vocabulary.model",
        positions=64,
        embedding=64,
    )
    config.model.loop = "unroll"  # a sixth faster than a scan on a CPU
    config.data.settings.prose = True  # plain sentences, whose order can be predicted
    config.data.lengths = {"inputs": 48}
    config.data.batch_size = 16
    config.train.steps = 3000
    config.optimizer = {
        "name": "adamw",
        "b2": 0.98,
        "weight_decay": 0.01,
        **recipes.linear(config, 1e-3, warmup_steps=recipes.warmup(config, 100)),
    }
    config.evaluate.every = 250
    return config
