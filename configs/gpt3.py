"""GPT-3, pretrained as a language model.

    python -m t5x_like.train --config=configs/gpt3.py:small --config.workdir=runs/gpt3_small \
        --config.data.vocabulary=FOLDER

FOLDER holds GPT-2's vocab.json and merges.txt (configs/gpt2.py). Sizes: `demo`, `small`, `medium`,
`large`, `xl`, `2_7b`, `6_7b`, `13b`, `175b`. The corpora below are files of yours, JSON Lines with
a field "text" (data/mixture_files.py): put them where the config looks for them, or change
`--config.data.settings.corpora.webtext2.files`, and `tokens` to theirs (0 to have them counted).

| Brown et al. 2020, sections 2.1 to 2.3 and appendix B | here |
|---|---|
| sizes, learning rates, batches in tokens (table 2.1) | systems/gpt3.py: SIZES, _TRAINING below |
| context of 2048 tokens; documents packed with a mark between | data.lengths.targets, objective |
| weights of the corpora (table 2.2) | data.settings.corpora |
| 300 billion tokens | train.steps, by the batches of all phases |
| batch from 32k tokens to full, linear over the first 4 to 12 billion | phases, in 8 steps |
| rate up over 375 million tokens, cosine to 10% over 260 billion, then still | optimizer |
| Adam (0.9, 0.95, 1e-8), norm 1.0, decay 0.1 | optimizer |

| corpus | tokens | weight | epochs in 300 billion |
|---|---|---|---|
| Common Crawl, filtered | 410 billion | 60% | 0.44 |
| WebText2 | 19 billion | 22% | 2.9 |
| Books1 | 12 billion | 8% | 1.9 |
| Books2 | 55 billion | 8% | 0.43 |
| Wikipedia | 3 billion | 3% | 3.4 |

The weights are rounded (they sum to 101%), so that a run's `epochs/...` come near the last column:
0.43, 3.4, 2.0, 0.43 and 3.0. The paper does not tell dropout and the width of the bands.

The demo learns on documentation strings in minutes on 2 free CPU cores, with GPT-2's demo
vocabulary and a batch that is doubled on the way. Expect a held-out loss of 4.33 nats at the end,
where the unigram entropy of the targets is 6.35:

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=gpt2_bpe --size=4096 \
        --output=runs/gpt2_demo/vocabulary
    python -m t5x_like.train --config=configs/gpt3.py:demo
"""

from typing import Any

import ml_collections

from t5x_like.config import defaults
from t5x_like.systems.gpt3 import SIZES

_LENGTH = 2048
_TOKENS, _DECAY, _WARMUP = 300e9, 260e9, 375e6
_FIRST_BATCH = 16  # 32k tokens
_STAGES = 8

# Learning rate, rows in a full batch (0.5, 1, 2 and 3.2 million tokens), tokens until it is full.
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
_CORPORA = {
    "common_crawl": (60, 410_000_000_000),
    "webtext2": (22, 19_000_000_000),
    "books1": (8, 12_000_000_000),
    "books2": (8, 55_000_000_000),
    "wikipedia": (3, 3_000_000_000),
}


def get_config(size: str = "small") -> ml_collections.ConfigDict:
    """The config of one of the sizes above."""
    if size == "demo":
        return _demo()
    if size not in SIZES:
        raise ValueError(f"configs/gpt3.py has no size {size!r}: choose demo, {', '.join(SIZES)}")
    rate, batch_size, ramp = _TRAINING[size]
    config = defaults()
    config.system = "gpt3"
    config.workdir = f"runs/gpt3_{size}"
    config.model = SIZES[size]
    config.loss = {"z_loss": 0.0, "label_smoothing": 0.0}
    config.data.module = "data/mixture_files.py"
    config.data.task = "mixture_files"
    config.data.settings = {
        "corpora": {
            name: {
                "files": f"corpora/{name}/*.jsonl.gz",
                "weight": weight,
                "text": "text",
                "tokens": tokens,
            }
            for name, (weight, tokens) in _CORPORA.items()
        },
        "held_out": 0.001,
    }
    config.data.objective = "language_modeling"
    config.data.converter = "decoder"
    config.data.lengths = {"targets": _LENGTH}
    config.data.batch_size = batch_size
    phases = _ramp(batch_size, ramp)
    config.phases = phases
    config.train.phases = tuple(phases)
    config.train.steps = sum(phase["steps"] for phase in phases.values())
    not_decaying = _steps(_TOKENS - _DECAY, batch_size)
    config.optimizer = _optimizer(rate, decay_steps=config.train.steps - not_decaying)
    config.checkpoint.every = 5_000
    config.evaluate.every = 5_000
    config.evaluate.tasks = tuple(f"mixture_files_{name}" for name in _CORPORA)
    return config


def _optimizer(learning_rate: float, *, decay_steps: int) -> dict[str, Any]:
    return {
        "name": "adamw",
        "b2": 0.95,
        "epsilon": 1e-8,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        "schedule": "cosine",
        "learning_rate": learning_rate,
        "end_learning_rate": learning_rate / 10,
        "warmup_steps": _steps(_WARMUP, _FIRST_BATCH),
        "decay_steps": decay_steps,
    }


def _steps(tokens: float, batch_size: int) -> int:
    return round(tokens / (batch_size * _LENGTH))


def _ramp(batch_size: int, tokens: float) -> dict[str, dict[str, Any]]:
    """Batches that grow in equal steps, each for an equal part of so many tokens, then the rest."""
    stages = {}
    for stage in range(_STAGES):
        # Multiples of the first, which as many devices can share.
        growth = (batch_size - _FIRST_BATCH) * stage / _STAGES
        rows = _FIRST_BATCH + _FIRST_BATCH * round(growth / _FIRST_BATCH)
        stages[f"ramp_{stage}"] = {"batch_size": rows, "steps": _steps(tokens / _STAGES, rows)}
    full = {"batch_size": batch_size, "steps": _steps(_TOKENS - tokens, batch_size)}
    return stages | {"full": full}


def _demo() -> ml_collections.ConfigDict:
    config = get_config("small")
    config.workdir = "runs/gpt3_demo"
    config.model.update(
        {
            "vocab_size": 4096,
            "positions": 128,
            "layers": 2,
            "d_model": 128,
            "d_ff": 512,
            "heads": 4,
            "head_width": 32,
            "window": 16,
        }
    )
    config.data.module = "data/pydocs.py"
    config.data.task = "pydocs"
    config.data.settings = ml_collections.ConfigDict()
    config.data.vocabulary = "runs/gpt2_demo/vocabulary"
    config.data.lengths = {"targets": 128}
    config.phases = ml_collections.ConfigDict(
        {"half": {"steps": 400, "batch_size": 8}, "full": {"steps": 500, "batch_size": 16}}
    )
    config.train.phases = ("half", "full")
    config.train.steps = 900
    config.train.log_every = 20
    config.optimizer.update(
        {
            "learning_rate": 2e-3,
            "end_learning_rate": 2e-4,
            "warmup_steps": 100,
            "decay_steps": 900,
        }
    )
    config.checkpoint.every = 450
    config.evaluate.every = 200
    config.evaluate.tasks = ()
    return config
