"""GPT-2, pretrained as a language model.

    python -m t5x_like.train --config=configs/gpt2.py:small --config.workdir=runs/gpt2_small \
        --config.data.vocabulary=FOLDER

FOLDER contains vocab.json and merges.txt, from `openai-community/gpt2` or trained by `python -m
t5x_like.vocabulary --kind=gpt2_bpe`. Sizes: `demo`, `small`, `medium`, `large`, `xl`.

| Radford et al. 2019, sections 2.2 and 2.3 | here |
|---|---|
| context of 1024 tokens | data.lengths.targets |
| batch of 512 | data.batch_size |
| byte-level BPE, 50,257 pieces | data.vocabulary |
| WebText | C4, since WebText was not released |
| learning rate "manually tuned" for each size | GPT-3's (Brown et al. 2020, table 2.1) |

The paper gives neither the steps nor the optimizer and its schedule. Here the optimizer is GPT-3's:
Adam (0.9, 0.95), weight decay 0.1, gradient norm 1.0, a cosine to a tenth.

The demo learns on documentation strings in about three minutes on 2 free CPU cores. Expect a
held-out loss of 4.05 nats at the end (unigram entropy of the targets: 6.35):

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=gpt2_bpe --size=4096 \
        --output=runs/gpt2_demo/vocabulary
    python -m t5x_like.train --config=configs/gpt2.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes

_LEARNING_RATES = {"small": 6e-4, "medium": 3e-4, "large": 2.5e-4, "xl": 2e-4}


def get_config(size: str = "small") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("gpt2", size)
    recipes.language_modeling(config, length=1024)
    config.data.batch_size = 512
    config.train.steps = 600_000
    config.optimizer = {
        "name": "adamw",
        "b2": 0.95,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        **recipes.cosine(config, _LEARNING_RATES[size], warmup_steps=2_000),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("small"), vocabulary="runs/gpt2_demo/vocabulary", positions=128
    )
    config.data.lengths = {"targets": 128}
    config.data.batch_size = 16
    config.train.steps = 1000
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)})
    return config
