"""LaMDA, pretrained as a language model.

    python -m t5x_like.train --config=configs/lamda.py:2b --config.workdir=runs/lamda_2b \
        --config.data.vocabulary=vocabulary.model

The vocabulary is trained by `python -m t5x_like.vocabulary --size=31900 --byte_fallback`. Sizes:
`demo`, `2b`, `8b`, `137b`.

| Thoppilan et al. 2022, section 3, table 27 | here |
|---|---|
| batches of 256K tokens | data.batch_size=256 of data.lengths.targets=1024 |
| 501k (2B), 521k (8B) and 3M (137B) steps | train.steps |
| SentencePiece with BPE, 32K pieces | data.vocabulary: unigrams, with 100 sentinels of T5 |
| 50% dialogs of public forums, C4, Wikipedia, code, other web documents | C4 |
| optimizer, schedule, tokens per row: not in the paper | T5's, and 1024 |

3M steps of 256K tokens are about 0.8 of the 2.81 trillion tokens of the corpus.
configs/lamda_dialogs.py fine-tunes on dialogs, ratings and a toolset (section 6).

The demo learns on documentation strings in minutes on 2 free CPU cores. Expect a held-out loss of
4.03 nats at the end (unigram entropy of the targets: 6.43):

    python -m t5x_like.vocabulary --data=data/pydocs.py --size=3996 --byte_fallback \
        --output=runs/lamda_demo/vocabulary.model
    python -m t5x_like.train --config=configs/lamda.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes

_STEPS = {"2b": 501_000, "8b": 521_000, "137b": 3_000_000}


def get_config(size: str = "2b") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("lamda", size)
    config.model.dtype = "bfloat16"
    recipes.language_modeling(config, length=1024)
    config.loss.z_loss = 1e-4
    config.data.batch_size = 256
    config.train.steps = _STEPS[size]
    config.optimizer = {"name": "adafactor", **recipes.rsqrt()}
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("2b"), vocabulary="runs/lamda_demo/vocabulary.model", d_ff=1024
    )
    config.data.lengths = {"targets": 128}
    config.data.batch_size = 16
    config.train.steps = 1000
    # A short run ends with a lower loss if its learning rate decays.
    config.optimizer = {
        "name": "adafactor",
        **recipes.linear(config, 0.02, warmup_steps=recipes.warmup(config, 100)),
    }
    return config
