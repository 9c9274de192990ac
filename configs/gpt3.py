"""GPT-3, pretrained as a language model.

    python -m t5x_like.train --config=configs/gpt3.py:small --config.workdir=runs/gpt3_small \
        --config.data.vocabulary=FOLDER

FOLDER contains GPT-2's vocab.json and merges.txt (configs/gpt2.py). Sizes: `demo`, `small`,
`medium`, `large`, `xl`, `2_7b`, `6_7b`, `13b`, `175b`. The corpora below are your files, JSON Lines
with a field "text" (data/mixture_files.py), in corpora/webtext2/*.jsonl.gz and so on. Other files:
`--config.data.settings.corpora.webtext2.files`, with `tokens` set to their number of tokens, or to
0 to count them.

| Brown et al. 2020, sections 2.1 to 2.3 and appendix B | here |
|---|---|
| sizes, learning rates, batches in tokens (table 2.1) | systems/gpt3.py: SIZES, _TRAINING below |
| context of 2048 tokens; documents packed, separated by a special token | data.lengths, objective |
| weights of the corpora (table 2.2) | data.settings.corpora |
| 300 billion tokens | train.steps, by the batches of all phases |
| batch from 32k tokens to full, linear over the first 4 to 12 billion | phases, in 8 steps |
| warmup over 375 million tokens, cosine to 10% over 260 billion, then constant | optimizer |
| Adam (0.9, 0.95, 1e-8), gradient norm 1.0, weight decay 0.1 | optimizer |

| corpus | tokens | weight | epochs in 300 billion |
|---|---|---|---|
| Common Crawl, filtered | 410 billion | 60% | 0.44 |
| WebText2 | 19 billion | 22% | 2.9 |
| Books1 | 12 billion | 8% | 1.9 |
| Books2 | 55 billion | 8% | 0.43 |
| Wikipedia | 3 billion | 3% | 3.4 |

The published weights are rounded (they sum to 101%), so that a run's `epochs/...` are near the last
column: 0.43, 3.4, 2.0, 0.43 and 3.0. The paper gives neither dropout nor the width of the bands of
its sparse attention. The Sparse Transformer's strided or fixed attention:

    --config.model.pattern=strided --config.model.stride=128
    --config.model.pattern=fixed --config.model.stride=128 --config.model.summary=8

The demo learns on documentation strings in minutes on 2 free CPU cores, with GPT-2's demo
vocabulary and a batch that doubles midway. Expect a held-out loss of 4.33 nats at the end (unigram
entropy of the targets: 6.35):

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=gpt2_bpe --size=4096 \
        --output=runs/gpt2_demo/vocabulary
    python -m t5x_like.train --config=configs/gpt3.py:demo
"""

from typing import Any

import ml_collections

from t5x_like.experiment import recipes

_LENGTH = 2048
_TOKENS, _DECAY, _WARMUP = 300e9, 260e9, 375e6
_FIRST_BATCH = 16  # 32k tokens
_STAGES = 8

# Learning rate, rows of a full batch (0.5, 1, 2 and 3.2 million tokens), tokens of the ramp.
_TRAINING = {
    "small": (6.0e-4, 256, 4e9),
    "medium": (3.0e-4, 256, 4e9),
    "large": (2.5e-4, 256, 4e9),
    "xl": (2.0e-4, 512, 6e9),
    "2_7b": (1.6e-4, 512, 6e9),
    "6_7b": (1.2e-4, 1024, 8e9),
    "13b": (1.0e-4, 1024, 8e9),
    "175b": (0.6e-4, 1600, 12e9),
}
# Table 2.2: weight and tokens of each corpus.
_CORPORA = {
    "common_crawl": (60, 410e9),
    "webtext2": (22, 19e9),
    "books1": (8, 12e9),
    "books2": (8, 55e9),
    "wikipedia": (3, 3e9),
}


def get_config(size: str = "small") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("gpt3", size)
    recipes.language_modeling(config, length=_LENGTH)
    recipes.mixture(config, _CORPORA)
    learning_rate, batch_size, ramp = _TRAINING[size]
    config.data.batch_size = batch_size
    recipes.phases(config, **_ramp(batch_size, ramp))
    steps, constant = config.train.steps, _steps(_TOKENS - _DECAY, batch_size)
    config.optimizer = {
        "name": "adamw",
        "b2": 0.95,
        "epsilon": 1e-8,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        **recipes.cosine(config, learning_rate, warmup_steps=_steps(_WARMUP, _FIRST_BATCH)),
        "decay_steps": recipes.steps(config) * (steps - constant) // steps,
    }
    return config


def _steps(tokens: float, batch_size: int) -> int:
    return round(tokens / (batch_size * _LENGTH))


def _ramp(batch_size: int, tokens: float) -> dict[str, dict[str, Any]]:
    """Return phases whose batch grows in equal steps over the first `tokens`, then stays full."""
    stages = {}
    for stage in range(_STAGES):
        # Multiples of the first batch, so that all divide among the same devices.
        growth = (batch_size - _FIRST_BATCH) * stage / _STAGES
        rows = _FIRST_BATCH + _FIRST_BATCH * round(growth / _FIRST_BATCH)
        stages[f"ramp_{stage}"] = {"batch_size": rows, "steps": _steps(tokens / _STAGES, rows)}
    full = {"batch_size": batch_size, "steps": _steps(_TOKENS - tokens, batch_size)}
    return stages | {"full": full}


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("small"), vocabulary="runs/gpt2_demo/vocabulary", positions=128, window=16
    )
    config.data.lengths = {"targets": 128}
    recipes.phases(
        config,
        half={"steps": 400, "batch_size": 8},
        full={"steps": 500, "batch_size": 16},
    )
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)})
    config.optimizer.decay_steps = recipes.steps(config)
    config.checkpoint.every = 450
    return config
