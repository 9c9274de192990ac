"""Gopher, pretrained as a language model.

    python -m t5x_like.vocabulary --data=data/c4.py --size=31900 --byte_fallback \
        --output=runs/gopher.model
    python -m t5x_like.train --config=configs/gopher.py:117m --config.workdir=runs/gopher_117m \
        --config.data.vocabulary=runs/gopher.model

Sizes: `demo`, `44m`, `117m`, `417m`, `1.4b`, `7.1b`, `280b`.

| Rae et al. 2021, sections 2.1 to 2.3, table 1 | here |
|---|---|
| 300 billion tokens in rows of 2048 | train.steps, data.lengths.targets |
| Adam; warmup of 1500 steps from 1e-7, then a cosine to a tenth | optimizer; the warmup is from 0 |
| rates 6e-4 (44M, 117M), 2e-4 (417M, 1.4B), 1.2e-4 (7.1B), 4e-5 (280B) | optimizer.learning_rate |
| 0.25 million tokens a batch; 2 (7.1B); 3, later 6 (280B) | data.batch_size; `phases` of 280B |
| the norm of gradients clipped at 1; 0.25 (7.1B, 280B) | optimizer.clip_norm |
| bfloat16 activations; parameters float32, or bfloat16 (7.1B, 280B) | model.dtype; always float32 |
| SentencePiece of 32,000 pieces, with bytes | data.vocabulary, with 100 sentinels of T5 |
| MassiveText, sampled by source | C4, since MassiveText was not released |

That the 280B's batch grew midway is told by Hoffmann et al. 2022 (table 4). The paper does not tell
Adam's decay rates: they are GPT-3's, 0.9 and 0.95.

The demo learns on documentation strings in minutes on 2 free CPU cores. Expect a held-out loss of
4.02 nats at the end, where the unigram entropy of the targets is 6.43:

    python -m t5x_like.vocabulary --data=data/pydocs.py --size=3996 --byte_fallback \
        --output=runs/gopher_demo/vocabulary.model
    python -m t5x_like.train --config=configs/gopher.py:demo
"""

import ml_collections

from t5x_like.config import defaults
from t5x_like.systems.gopher import SIZES

_LENGTH = 2048
_TOKENS = 300e9
# Rates, rows a batch (2^18, 2^21 and 3 * 2^20 tokens), and the largest norm of a gradient.
_TRAINING = {
    "44m": (6e-4, 128, 1.0),
    "117m": (6e-4, 128, 1.0),
    "417m": (2e-4, 128, 1.0),
    "1.4b": (2e-4, 128, 1.0),
    "7.1b": (1.2e-4, 1024, 0.25),
    "280b": (4e-5, 1536, 0.25),
}


def get_config(size: str = "117m") -> ml_collections.ConfigDict:
    """The config of one of the sizes above."""
    if size == "demo":
        return _demo()
    if size not in SIZES:
        raise ValueError(f"configs/gopher.py has no size {size!r}: choose demo, {', '.join(SIZES)}")
    learning_rate, rows, clip_norm = _TRAINING[size]
    config = defaults()
    config.system = "gopher"
    config.workdir = f"runs/gopher_{size}"
    config.model = SIZES[size] | {"dtype": "bfloat16"}
    config.loss = {"z_loss": 0.0, "label_smoothing": 0.0}
    config.data.module = "data/c4.py"
    config.data.task = "c4_en"
    config.data.objective = "language_modeling"
    config.data.converter = "decoder"
    config.data.lengths = {"targets": _LENGTH}
    config.data.batch_size = rows
    # References, so that the schedule follows --config.train.steps.
    steps = ml_collections.FieldReference(round(_TOKENS / (rows * _LENGTH)))
    config.train.steps = steps
    if size == "280b":  # half of the tokens, and the other half in batches of twice the size
        first = round(_TOKENS / 2 / (rows * _LENGTH))
        second = {"steps": round(first / 2), "batch_size": 2 * rows}
        config.train.phases = ("first", "second")
        config.phases = {"first": {"steps": first}, "second": second}
        steps.set(first + second["steps"])
    config.optimizer = {
        "name": "adamw",
        "b2": 0.95,
        "weight_decay": 0.0,  # so it is Adam
        "clip_norm": clip_norm,
        "schedule": "cosine",
        "learning_rate": learning_rate,
        "end_learning_rate": learning_rate / 10,
        "warmup_steps": 1_500,
        "decay_steps": steps,
    }
    config.checkpoint.every = 5_000
    config.evaluate.every = 5_000
    return config


def _demo() -> ml_collections.ConfigDict:
    config = get_config("117m")
    config.workdir = "runs/gopher_demo"
    config.model.update(
        {
            "vocab_size": 4096,
            "layers": 2,
            "d_model": 128,
            "d_ff": 512,
            "heads": 4,
            "head_width": 32,
            "dtype": "float32",
        }
    )
    config.data.module = "data/pydocs.py"
    config.data.task = "pydocs"
    config.data.vocabulary = "runs/gopher_demo/vocabulary.model"
    config.data.lengths = {"targets": 128}
    config.data.batch_size = 16
    config.train.steps = 1000
    config.train.log_every = 20
    config.optimizer.update({"learning_rate": 2e-3, "end_learning_rate": 2e-4, "warmup_steps": 100})
    config.checkpoint.every = 500
    config.evaluate.every = 200
    return config
