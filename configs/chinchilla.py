"""Chinchilla: Gopher's architecture, with the compute-optimal size and training length.

    python -m t5x_like.vocabulary --data=data/c4.py --size=31900 --byte_fallback --keep_characters \
        --output=runs/chinchilla.model
    python -m t5x_like.train --config=configs/chinchilla.py:306m \
        --config.workdir=runs/chinchilla_306m --config.data.vocabulary=runs/chinchilla.model

Sizes: `demo`, `74m`, `306m`, `552m`, `1.1b`, `1.6b`, `6.8b`, `70b`. All but the demo are trained on
20 tokens per parameter, which for the 70b is the paper's 1.4 trillion. For another budget,
`compute_optimal` computes the best size and number of tokens. The corpora below are your files, as
in configs/gpt3.py; the paper's MassiveText was not released.

| Hoffmann et al. 2022, section 4.1, table 4; appendix D for the other sizes | here |
|---|---|
| 1.4 trillion tokens for 70B, in rows of 2048 | train.steps, data.lengths.targets |
| AdamW instead of Adam; a cosine to a tenth, as long as the run | optimizer |
| rate 1e-4; others 2e-4 (the smallest) to 1.25e-4 (the largest) | optimizer.learning_rate |
| batches of 1.5 million tokens, doubled midway; in section D.4 0.5 | data.batch_size, `phases` |
| computes in bfloat16, keeps weights in float32 | model.dtype; weights are float32 |
| SentencePiece of 32,000 pieces, without NFKC | data.vocabulary, with 100 sentinels of T5 |
| weights of the corpora (table A1) | data.settings.corpora |

| corpus | weight | epochs in 1.4 trillion tokens |
|---|---|---|
| MassiveWeb | 45% | 1.24 |
| Books | 30% | 0.75 |
| C4 | 10% | 0.77 |
| News | 10% | 0.21 |
| GitHub | 4% | 0.13 |
| Wikipedia | 1% | 3.40 |

The rest is "as Gopher". For the sizes below 70B the paper gives no warmup, and a batch only in
section D.4. It does not give AdamW's weight decay: here it is GPT-3's, 0.1.

The demo is Gopher's with AdamW and the same vocabulary, so that the losses can be compared. It is
far from compute-optimal: it reads 2 tokens per parameter. In 1000 steps weight decay has little
effect: it shrinks an unused weight by a tenth. Expect 4.03 nats, where Gopher's Adam reaches 4.02
and the unigram entropy of the targets is 6.43; with one run of each this shows no difference:

    python -m t5x_like.vocabulary --data=data/pydocs.py --size=3996 --byte_fallback \
        --output=runs/gopher_demo/vocabulary.model
    python -m t5x_like.train --config=configs/chinchilla.py:demo
"""

import math
from collections.abc import Mapping
from typing import Any

import ml_collections

from t5x_like.experiment import recipes

TOKENS_PER_PARAMETER = 20
_LENGTH = 2048
_RATES = {"6.8b": 1.25e-4, "70b": 1e-4}  # 2e-4 for the others
# Table A1: weight of each corpus, and its tokens, derived from its epochs in 1.4 trillion tokens.
_CORPORA = {
    "massive_web": (45, 0.45 * 1.4e12 / 1.24),
    "books": (30, 0.30 * 1.4e12 / 0.75),
    "c4": (10, 0.10 * 1.4e12 / 0.77),
    "news": (10, 0.10 * 1.4e12 / 0.21),
    "github": (4, 0.04 * 1.4e12 / 0.13),
    "wikipedia": (1, 0.01 * 1.4e12 / 3.40),
}


def compute_optimal(flops: float) -> tuple[float, float]:
    """Return the best number of parameters and of training tokens for a budget of FLOPs.

    With C = 6 N D FLOPs for N parameters and D tokens, and D = 20 N, it is within 10% of table 3 of
    the paper (approach 1) from 400 million parameters to 10 trillion.
    """
    parameters = math.sqrt(flops / (6 * TOKENS_PER_PARAMETER))
    return parameters, TOKENS_PER_PARAMETER * parameters


def parameters(model: Mapping[str, Any]) -> int:
    """Return the number of parameters of a network, as in table A9: without the norms' scales."""
    width, inner = model["d_model"], model["heads"] * model["head_width"]
    attention = 5 * width * inner + 5 * inner + width
    feed_forward = 2 * width * model["d_ff"] + model["d_ff"] + width
    return model["vocab_size"] * width + model["layers"] * (attention + feed_forward)


def get_config(size: str = "306m") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("chinchilla", size)
    config.model.dtype = "bfloat16"
    recipes.language_modeling(config, length=_LENGTH)
    recipes.mixture(config, _CORPORA)
    config.data.batch_size = rows = 768 if size == "70b" else 256
    number = parameters(config.model)
    tokens = TOKENS_PER_PARAMETER * number
    config.train.steps = round(tokens / (rows * _LENGTH))
    if size == "70b":  # the batch doubles after half of the tokens
        first = round(tokens / 2 / (rows * _LENGTH))
        second = {"steps": round(first / 2), "batch_size": 2 * rows}
        recipes.phases(config, first={"steps": first}, second=second)
    config.optimizer = {
        "name": "adamw",
        "b2": 0.95,
        "weight_decay": 0.1,
        "clip_norm": 1.0 if number < 6e9 else 0.25,
        **recipes.cosine(config, _RATES.get(size, 2e-4), warmup_steps=1_500),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(get_config("74m"), vocabulary="runs/gopher_demo/vocabulary.model")
    config.data.lengths = {"targets": 128}
    config.data.batch_size = 16
    config.train.steps = 1000
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)})
    return config
