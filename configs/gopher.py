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
| batches of 0.25 million tokens; 2 (7.1B); 3, later 6 (280B) | data.batch_size; `phases` of 280B |
| gradient norm clipped at 1; 0.25 (7.1B, 280B) | optimizer.clip_norm |
| bfloat16 activations; parameters float32, or bfloat16 (7.1B, 280B) | model.dtype; always float32 |
| SentencePiece of 32,000 pieces, with bytes | data.vocabulary, with 100 sentinels of T5 |
| weights of the corpora of MassiveText (table 2) | data.settings.corpora |

| corpus | tokens | weight | epochs in 300 billion |
|---|---|---|---|
| MassiveWeb | 506 billion | 48% | 0.28 |
| Books | 560 billion | 27% | 0.14 |
| C4 | 182 billion | 10% | 0.16 |
| News | 676 billion | 10% | 0.04 |
| GitHub | 422 billion | 3% | 0.02 |
| Wikipedia | 4 billion | 2% | 1.5 |

MassiveText was not released: the corpora are your files, as in configs/gpt3.py. That the batch of
280B doubled midway is from Hoffmann et al. 2022 (table 4). The paper does not give Adam's betas:
here they are GPT-3's, 0.9 and 0.95.

The demo learns on documentation strings in minutes on 2 free CPU cores. Expect a held-out loss of
4.02 nats at the end (unigram entropy of the targets: 6.43):

    python -m t5x_like.vocabulary --data=data/pydocs.py --size=3996 --byte_fallback \
        --output=runs/gopher_demo/vocabulary.model
    python -m t5x_like.train --config=configs/gopher.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes

_LENGTH = 2048
_TOKENS = 300e9
# Learning rate, rows per batch (2^18, 2^21 and 3 * 2^20 tokens), and gradient norm limit.
_TRAINING = {
    "44m": (6e-4, 128, 1.0),
    "117m": (6e-4, 128, 1.0),
    "417m": (2e-4, 128, 1.0),
    "1.4b": (2e-4, 128, 1.0),
    "7.1b": (1.2e-4, 1024, 0.25),
    "280b": (4e-5, 1536, 0.25),
}
# Table 2: weight and tokens of each corpus.
_CORPORA = {
    "massive_web": (48, 506e9),
    "books": (27, 560e9),
    "c4": (10, 182e9),
    "news": (10, 676e9),
    "github": (3, 422e9),
    "wikipedia": (2, 4e9),
}


def get_config(size: str = "117m") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("gopher", size)
    config.model.dtype = "bfloat16"
    recipes.language_modeling(config, length=_LENGTH)
    recipes.mixture(config, _CORPORA)
    learning_rate, rows, clip_norm = _TRAINING[size]
    config.data.batch_size = rows
    config.train.steps = round(_TOKENS / (rows * _LENGTH))
    if size == "280b":  # the batch doubles after half of the tokens
        first = round(_TOKENS / 2 / (rows * _LENGTH))
        second = {"steps": round(first / 2), "batch_size": 2 * rows}
        recipes.phases(config, first={"steps": first}, second=second)
    config.optimizer = {
        "name": "adamw",
        "b2": 0.95,
        "weight_decay": 0.0,  # which makes it Adam
        "clip_norm": clip_norm,
        **recipes.cosine(config, learning_rate, warmup_steps=1_500),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(get_config("117m"), vocabulary="runs/gopher_demo/vocabulary.model")
    config.data.lengths = {"targets": 128}
    config.data.batch_size = 16
    config.train.steps = 1000
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)})
    return config
