"""GPT-2, pretrained as a language model.

    python -m t5x_like.train --config=configs/gpt2.py:small --config.workdir=runs/gpt2_small \
        --config.data.vocabulary=FOLDER

FOLDER holds vocab.json and merges.txt: those of Hugging Face's `openai-community/gpt2`, or trained
by `python -m t5x_like.vocabulary --kind=gpt2_bpe`. Sizes: `demo`, `small`, `medium`, `large`, `xl`.

| Radford et al. 2019, sections 2.2 and 2.3 | here |
|---|---|
| context of 1024 tokens | data.lengths.targets |
| batch of 512 | data.batch_size |
| byte-level BPE, 50,257 pieces | data.vocabulary |
| WebText | C4, since WebText was not released |
| learning rate "manually tuned" for each size | GPT-3's for it (Brown et al. 2020, table 2.1) |

The paper does not tell the steps, the optimizer or its schedule: they are GPT-3's here too, with
Adam (0.9, 0.95), decay 0.1, norm 1.0, a cosine to a tenth.

The demo learns on documentation strings in some three minutes on 2 free CPU cores. Expect a
held-out loss of 4.05 nats at the end, where the unigram entropy of the targets is 6.35:

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=gpt2_bpe --size=4096 \
        --output=runs/gpt2_demo/vocabulary
    python -m t5x_like.train --config=configs/gpt2.py:demo
"""

import ml_collections

from t5x_like.config import defaults
from t5x_like.systems.gpt2 import SIZES

_LEARNING_RATES = {"small": 6e-4, "medium": 3e-4, "large": 2.5e-4, "xl": 2e-4}


def get_config(size: str = "small") -> ml_collections.ConfigDict:
    """The config of one of the sizes above."""
    if size == "demo":
        return _demo()
    if size not in SIZES:
        raise ValueError(f"configs/gpt2.py has no size {size!r}: choose demo, {', '.join(SIZES)}")
    config = defaults()
    config.system = "gpt2"
    config.workdir = f"runs/gpt2_{size}"
    config.model = SIZES[size]
    config.loss = {"z_loss": 0.0, "label_smoothing": 0.0}
    config.data.module = "data/c4.py"
    config.data.task = "c4_en"
    config.data.objective = "language_modeling"
    config.data.converter = "decoder"
    config.data.lengths = {"targets": 1024}
    config.data.batch_size = 512
    # References, so that the schedule follows --config.train.steps.
    steps = ml_collections.FieldReference(600_000)
    config.train.steps = steps
    config.optimizer = {
        "name": "adamw",
        "b2": 0.95,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        "schedule": "cosine",
        "learning_rate": _LEARNING_RATES[size],
        "end_learning_rate": _LEARNING_RATES[size] / 10,
        "warmup_steps": 2_000,
        "decay_steps": steps,
    }
    config.checkpoint.every = 5_000
    config.evaluate.every = 5_000
    return config


def _demo() -> ml_collections.ConfigDict:
    config = get_config("small")
    config.workdir = "runs/gpt2_demo"
    config.model.update(
        {"vocab_size": 4096, "positions": 128, "layers": 2, "d_model": 128, "d_ff": 512, "heads": 4}
    )
    config.model.dropout = 0.0  # the run sees no text twice
    config.data.module = "data/pydocs.py"
    config.data.task = "pydocs"
    config.data.vocabulary = "runs/gpt2_demo/vocabulary"
    config.data.lengths = {"targets": 128}
    config.data.batch_size = 16
    config.train.steps = 1000
    config.train.log_every = 20
    config.optimizer.update({"learning_rate": 2e-3, "end_learning_rate": 2e-4, "warmup_steps": 100})
    config.checkpoint.every = 500
    config.evaluate.every = 200
    return config
