"""PaLM, pretrained as a language model.

    python -m t5x_like.train --config=configs/palm.py:8b --config.workdir=runs/palm_8b \
        --config.data.vocabulary=palm.model

palm.model is trained by `python -m t5x_like.vocabulary --kind=palm --size=256000`; PaLM's own was
not released. Sizes: `demo`, `8b`, `62b`, `540b`.

| Chowdhery et al. 2022, section 5 | here |
|---|---|
| sizes (table 1) | systems/palm.py: SIZES |
| 512 sequences to step 50,000, 1024 to 115,000, 2048 to 255,000 | phases |
| sequences of 2048 tokens, cut out of running text | data.lengths.targets, data.objective |
| Adafactor without factors, with parameter scaling | optimizer.min_dim_size_to_factor |
| 1e-2 for 10,000 steps, then 1/sqrt(k) | optimizer.schedule=rsqrt, warmup_steps |
| momentum 0.9; second moments by 1 - k^-0.8 | optimizer.momentum, decay_exponent |
| global norms up to 1.0 | optimizer.clip_norm |
| decay by the square of the learning rate | optimizer.weight_decay=1, weight_decay_power=2 |
| auxiliary loss of 1e-4 log^2 Z | loss.z_loss |
| no dropout (0.1 in fine-tuning) | model.dropout |
| the PaLM dataset, 780 billion tokens (table 2) | C4, since it was not released |

The batches and steps are those of the largest model; the paper says that the others are similar.

The demo learns on documentation strings in minutes on 2 free CPU cores. Expect a
held-out cross-entropy of 3.77 nats at the end, where the unigram entropy of the targets is 5.99:

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=palm --size=4096 \
        --output=runs/palm_demo/palm.model
    python -m t5x_like.train --config=configs/palm.py:demo
"""

import ml_collections

from t5x_like.config import defaults
from t5x_like.systems.palm import SIZES


def get_config(size: str = "8b") -> ml_collections.ConfigDict:
    """The config of one of the sizes above."""
    if size == "demo":
        return _demo()
    if size not in SIZES:
        raise ValueError(f"configs/palm.py has no size {size!r}: choose demo, {', '.join(SIZES)}")
    config = defaults()
    config.system = "palm"
    config.workdir = f"runs/palm_{size}"
    config.model = SIZES[size]
    config.loss = {"z_loss": 1e-4, "label_smoothing": 0.0}
    config.data.module = "data/c4.py"
    config.data.task = "c4_en"
    config.data.objective = "language_modeling"
    config.data.converter = "decoder"
    config.data.lengths = {"targets": 2048}
    config.train.steps = 255_000
    config.train.phases = ("first", "doubled", "quadrupled")
    config.phases = {
        "first": {"steps": 50_000, "batch_size": 512},
        "doubled": {"steps": 65_000, "batch_size": 1024},
        "quadrupled": {"steps": 140_000, "batch_size": 2048},
    }
    config.optimizer = {
        "name": "adafactor",
        "min_dim_size_to_factor": 1 << 30,  # more than any matrix has
        "decay_exponent": 0.8,
        "momentum": 0.9,
        "clip_norm": 1.0,
        "weight_decay": 1.0,
        "weight_decay_power": 2,
        "schedule": "rsqrt",
        "learning_rate": 1.0,
        "warmup_steps": 10_000,
    }
    config.checkpoint.every = 5_000
    config.evaluate.every = 5_000
    return config


def _demo() -> ml_collections.ConfigDict:
    config = get_config("8b")
    config.workdir = "runs/palm_demo"
    config.model.update(
        {
            "vocab_size": 4096,
            "layers": 2,
            "d_model": 128,
            "d_ff": 512,
            "heads": 4,
            "head_width": 32,
        }
    )
    config.data.module = "data/pydocs.py"
    config.data.task = "pydocs"
    config.data.vocabulary = "runs/palm_demo/palm.model"
    config.data.lengths = {"targets": 128}
    config.train.steps = 800
    config.train.log_every = 20
    config.phases = {
        "first": {"steps": 300, "batch_size": 8},
        "doubled": {"steps": 300, "batch_size": 16},
        "quadrupled": {"steps": 200, "batch_size": 32},
    }
    config.optimizer.update({"learning_rate": 0.3, "warmup_steps": 200})
    config.checkpoint.every = 400
    config.evaluate.every = 200
    return config
