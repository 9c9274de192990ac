"""DeBERTa, pretrained by masked n-grams with disentangled attention and a mask decoder.

    python -m t5x_like.train --config=configs/deberta.py:base --config.workdir=runs/deberta_base \
        --config.data.vocabulary=FOLDER

where FOLDER contains vocab.json and merges.txt of GPT-2's vocabulary.

Sizes: `demo`, `base` and `large`; and of version 3 `v3_demo`, `v3_small`, `v3_base` and `v3_large`.
`base` and `large` follow the paper (He et al. 2020, appendix A.2), on C4 instead of its corpora:

| appendix A.2 | large | base | here |
|---|---|---|---|
| layers, width, feed-forward, heads | 24, 1024, 4096, 16 | 12, 768, 3072, 12 | model |
| dropout, also in attention | 0.1 | 0.1 | model.dropout |
| warmup steps | 10k | 10k | optimizer.warmup_steps |
| peak learning rate | 2e-4 | 2e-4 | optimizer.learning_rate |
| batch | 2k | 2k | data.batch_size=2048, of 512 tokens |
| weight decay | 0.01 | 0.01 | optimizer.weight_decay; not of norms and biases |
| steps, decay of the rate | 1M, linear | 1M, linear | train.steps, optimizer.schedule |
| Adam's epsilon, beta 1, beta 2 | 1e-6, 0.9, 0.999 | 1e-6, 0.9, 0.999 | optimizer |
| gradient clipping | 1.0 | 1.0 | optimizer.clip_norm |
| masked n-grams of up to 3 tokens | | | data.objective=albert, without pairs |

The ablation of the paper (table 4), from the same file:

    --config.model.mask_decoder=False      --config.model.terms=p2c      --config.model.terms=c2p

A mask decoder of one step, or of two steps with different layers (section 3.2):

    --config.model.decoder_steps=1         --config.model.shared_steps=False

Version 3 detects replaced tokens as ELECTRA does. Its sizes follow section 3.1 of its paper (He et
al. 2021) and the published configurations of its generators:

| section 3.1 | here |
|---|---|
| generator as wide as the discriminator, with half of its layers | model.generator_layers |
| batch of 2048, 125,000 steps | data.batch_size, train.steps |
| peak learning rate 5e-4, 10,000 steps of warmup | optimizer |
| loss weight of the discriminator 50 | loss.discriminator |
| embeddings: shared without the discriminator's gradient (GDES) | model.sharing |

Its comparison of embeddings (table 2) is --config.model.sharing=embeddings (ES) and =none (NES).

The demos learn on documentation strings in minutes on 2 CPU cores:

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=byte_bpe --size=4096 \
        --output=runs/deberta_demo/vocabulary
    python -m t5x_like.train --config=configs/deberta.py:demo
    python -m t5x_like.train --config=configs/deberta.py:v3_demo
"""

import ml_collections

from t5x_like.experiment import recipes
from t5x_like.systems import deberta, deberta_v2


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size in ("demo", "v3_demo"):
        return _demo(size.replace("demo", "base"))
    recipes.check_size("deberta", size, ("demo", "v3_demo", *deberta.SIZES, *deberta_v2.SIZES))
    version_3 = size in deberta_v2.SIZES
    config = recipes.pretraining("deberta_v2" if version_3 else "deberta", size)
    config.workdir = f"runs/deberta_{size}"
    recipes.masked_language_modeling(config, "albert", length=512)
    config.data.objective_settings = {"longest": 3, "sentences": "none"}
    config.data.batch_size = 2048
    config.train.steps = 125_000 if version_3 else 1_000_000
    rate = 5e-4 if version_3 else 2e-4
    if version_3:
        config.model.head = "pretraining"
        config.loss = {"generator": 1.0, "discriminator": 50.0}
    config.optimizer = {
        "name": "adamw",
        "b1": 0.9,
        "b2": 0.999,
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        **recipes.linear(config, rate, warmup_steps=10_000),
    }
    return config


def _demo(size: str) -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config(size),
        vocabulary="runs/deberta_demo/vocabulary",
        positions=64,
        relative_span=32,
    )
    if "generator_layers" in config.model:
        config.model.generator_layers = config.model.layers // 2
        config.model.relative_buckets = 16
    config.data.lengths = {"inputs": 64}
    config.data.batch_size = 32
    config.train.steps = 1500
    config.optimizer.update(
        {"b2": 0.98, "learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)}
    )
    config.evaluate.every = 250
    return config
