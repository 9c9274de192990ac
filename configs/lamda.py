"""LaMDA, pretrained as a language model.

    python -m t5x_like.train --config=configs/lamda.py:2b --config.workdir=runs/lamda_2b \
        --config.data.vocabulary=vocabulary.model

The vocabulary is made by `python -m t5x_like.vocabulary --size=31900 --byte_fallback`. Sizes:
`demo`, `2b`, `8b`, `137b`.

| Thoppilan et al. 2022, section 3, table 27 | here |
|---|---|
| 256K tokens a batch | data.batch_size=256 of data.lengths.targets=1024 |
| 501k (2B), 521k (8B) and 3M (137B) steps | train.steps |
| SentencePiece with BPE, 32K pieces | data.vocabulary: unigrams, with 100 sentinels of T5 |
| 50% dialogs of public forums, C4, Wikipedia, code, other web documents | C4 |
| optimizer, schedule, length of a row: not told | T5's and 1024 |

3M steps of 256K tokens are some 0.8 trillion, of the 2.81 trillion that the text has. What comes
after pretraining, on dialogs, their ratings and a toolset (section 6), is not here yet.

The demo learns on documentation strings in minutes on 2 free CPU cores. Expect a held-out loss of
4.03 nats at the end, where the unigram entropy of the targets is 6.43:

    python -m t5x_like.vocabulary --data=data/pydocs.py --size=3996 --byte_fallback \
        --output=runs/lamda_demo/vocabulary.model
    python -m t5x_like.train --config=configs/lamda.py:demo
"""

import ml_collections

from t5x_like.config import defaults
from t5x_like.systems.lamda import SIZES

_STEPS = {"2b": 501_000, "8b": 521_000, "137b": 3_000_000}


def get_config(size: str = "2b") -> ml_collections.ConfigDict:
    """The config of one of the sizes above."""
    if size == "demo":
        return _demo()
    if size not in SIZES:
        raise ValueError(f"configs/lamda.py has no size {size!r}: choose demo, {', '.join(SIZES)}")
    config = defaults()
    config.system = "lamda"
    config.workdir = f"runs/lamda_{size}"
    config.model = SIZES[size] | {"dtype": "bfloat16"}
    config.loss = {"z_loss": 1e-4, "label_smoothing": 0.0}
    config.data.module = "data/c4.py"
    config.data.task = "c4_en"
    config.data.objective = "language_modeling"
    config.data.converter = "decoder"
    config.data.lengths = {"targets": 1024}
    config.data.batch_size = 256
    config.train.steps = _STEPS[size]
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
    config = get_config("2b")
    config.workdir = "runs/lamda_demo"
    config.model.update(
        {
            "vocab_size": 4096,
            "layers": 2,
            "d_model": 128,
            "d_ff": 1024,
            "heads": 4,
            "head_width": 32,
            "dtype": "float32",
        }
    )
    config.data.module = "data/pydocs.py"
    config.data.task = "pydocs"
    config.data.vocabulary = "runs/lamda_demo/vocabulary.model"
    config.data.lengths = {"targets": 128}
    config.data.batch_size = 16
    config.train.steps = 1000
    config.train.log_every = 20
    config.optimizer = {
        "name": "adafactor",
        "schedule": "linear",  # a short run gains by ending at a small rate
        "learning_rate": 0.02,
        "warmup_steps": 100,
        "decay_steps": config.train.steps,
    }
    config.checkpoint.every = 500
    config.evaluate.every = 200
    return config
