"""T5, pretrained by span corruption.

    python -m t5x_like.train --config=configs/t5.py:small --config.workdir=runs/t5_small \
        --config.data.vocabulary=vocabulary.model

Sizes: `demo`; v1.1 `small`, `base`, `large`, `xl`, `xxl`; v1.0 `v1_0_small`, `v1_0_base`,
`v1_0_large`, `v1_0_3b`, `v1_0_11b`. All but the demo follow the paper's baseline (Raffel et al.
2020, section 3.1): C4, 2^19 steps of 128 sequences of 512 tokens, Adafactor, a constant rate of
0.01 for 10^4 steps and then 1/sqrt(step), 15% of the tokens corrupted in spans of 3.

| section 3.1, table 1 | here |
|---|---|
| batch 2^16 tokens (512 x 128) | data.lengths.inputs=512, data.batch_size=128 |
| 2^19 = 524,288 steps | train.steps |
| inverse square root, k = 10^4 | optimizer.schedule=rsqrt, learning_rate=1.0, warmup_steps=10000 |
| dropout 0.1 (v1.1: none in pretraining) | model.dropout |

The comparisons of the paper, from the same file:

    --config.model.architecture=shared_encoder_decoder           (section 3.2)
    --config.model.encoder_layers=6 --config.model.decoder_layers=6
    --config.model.architecture=decoder --config.data.objective=language_modeling \
        --config.data.converter=decoder --config.data.lengths.targets=512
    --config.model.architecture=prefix_decoder --config.data.objective=prefix_lm \
        --config.data.converter=prefix_lm
    --config.data.objective=deshuffling, mass_style, iid_drop_tokens, ...   (section 3.3)

The demo, `make demo`, learns on documentation strings in minutes on 2 CPU cores: expect a
held-out loss near 4.2 nats where the unigram entropy of the targets is 5.75.
"""

import ml_collections

from t5x_like.config import defaults
from t5x_like.systems.t5 import SIZES


def get_config(size: str = "small") -> ml_collections.ConfigDict:
    """The config of one of the sizes above."""
    if size == "demo":
        return _demo()
    if size not in SIZES:
        raise ValueError(f"configs/t5.py has no size {size!r}: choose demo, {', '.join(SIZES)}")
    config = defaults()
    config.system = "t5"
    config.workdir = f"runs/t5_{size}"
    config.model = SIZES[size]
    config.loss = {"z_loss": 1e-4, "label_smoothing": 0.0}
    config.data.module = "data/c4.py"
    config.data.task = "c4_en"
    config.train.steps = 2**19
    config.optimizer = {
        "name": "adafactor",
        "schedule": "rsqrt",
        "learning_rate": 1.0,
        "warmup_steps": 10_000,
    }
    config.checkpoint.every = 5_000
    config.evaluate.every = 5_000
    return config


def _demo() -> ml_collections.ConfigDict:
    config = get_config("small")
    config.workdir = "runs/demo"
    # As small as learns in minutes: more steps of few examples beat fewer steps of many here.
    config.model.update(
        {
            "vocab_size": 4096,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "d_model": 128,
            "d_ff": 384,
            "heads": 4,
            "d_kv": 32,
        }
    )
    config.data.module = "data/pydocs.py"
    config.data.task = "pydocs"
    config.data.vocabulary = "runs/demo/vocabulary.model"
    config.data.lengths = {"inputs": 128, "targets": 32}
    config.data.batch_size = 8
    config.train.steps = 2500
    config.train.log_every = 20
    config.optimizer = {
        "name": "adafactor",
        "schedule": "linear",  # a short run gains by ending at a small rate
        "learning_rate": 0.02,
        "warmup_steps": 100,
        "decay_steps": config.train.steps,
    }
    config.checkpoint.every = 500
    config.evaluate.every = 500
    config.evaluate.batches = 80
    config.decode = {"max_new_tokens": 32, "num_beams": 4}
    return config
