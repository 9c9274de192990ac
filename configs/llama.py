"""LLaMA, pretrained as a language model.

    python -m t5x_like.train --config=configs/llama.py:7b --config.workdir=runs/llama_7b \
        --config.data.vocabulary=tokenizer.model

tokenizer.model is LLaMA's, or one trained by `python -m t5x_like.vocabulary --kind=llama`. Sizes:
`demo`, `7b`, `13b`, `33b`, `65b`.

| Touvron et al. 2023, section 2 | here |
|---|---|
| sizes, section 2.2 and table 2 | systems/llama.py: SIZES |
| learning rate 3e-4, 1.5e-4 for 33B and 65B (table 2) | optimizer.learning_rate |
| batches of 4M tokens | data.lengths.targets=2048, data.batch_size=2048 |
| 1.0T tokens, 1.4T for 33B and 65B | train.steps |
| AdamW, beta 0.9 and 0.95, weight decay 0.1, gradient norm up to 1.0 | optimizer |
| warmup of 2,000 steps, a cosine to 10% | optimizer.schedule, end_learning_rate |
| SentencePiece BPE, single digits, byte fallback, 32,000 pieces | data.vocabulary |
| weights of the corpora (table 1) | data.settings.corpora |

| corpus | weight | epochs in 1.4 trillion tokens |
|---|---|---|
| CommonCrawl | 67.0% | 1.10 |
| C4 | 15.0% | 1.06 |
| GitHub | 4.5% | 0.64 |
| Wikipedia | 4.5% | 2.45 |
| Books | 4.5% | 2.23 |
| ArXiv | 2.5% | 1.06 |
| StackExchange | 2.0% | 1.03 |

The corpora are your files, as in configs/gpt3.py. The paper does not give the initialization: here
the standard deviation is 0.02, as in GPT-2.

LLaMA 2, LLaMA 3 and Mistral are read from folders in Hugging Face's format
(configs/pretrained.py).

The demo learns on documentation strings in about four minutes on 2 free CPU cores. Expect a
held-out loss of 3.54 nats at the end (unigram entropy of the targets: 6.21):

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=llama --size=4096 \
        --output=runs/llama_demo/tokenizer.model
    python -m t5x_like.train --config=configs/llama.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes
from t5x_like.systems.llama import SIZES

# Table 2: learning rate and training tokens.
_TRAINING = {
    "7b": (3e-4, 1.0e12),
    "13b": (3e-4, 1.0e12),
    "33b": (1.5e-4, 1.4e12),
    "65b": (1.5e-4, 1.4e12),
}
# Table 1: weight of each corpus, and its tokens, derived from its epochs in 1.4 trillion tokens.
_CORPORA = {
    "common_crawl": (67.0, 0.670 * 1.4e12 / 1.10),
    "c4": (15.0, 0.150 * 1.4e12 / 1.06),
    "github": (4.5, 0.045 * 1.4e12 / 0.64),
    "wikipedia": (4.5, 0.045 * 1.4e12 / 2.45),
    "books": (4.5, 0.045 * 1.4e12 / 2.23),
    "arxiv": (2.5, 0.025 * 1.4e12 / 1.06),
    "stack_exchange": (2.0, 0.020 * 1.4e12 / 1.03),
}


def get_config(size: str = "7b") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("llama", size, sizes={name: SIZES[name] for name in _TRAINING})
    recipes.language_modeling(config, length=2048)
    recipes.mixture(config, _CORPORA)
    learning_rate, tokens = _TRAINING[size]
    config.data.batch_size = 2048
    config.train.steps = round(tokens / 2048**2)
    config.optimizer = {
        "name": "adamw",
        "b2": 0.95,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        **recipes.cosine(config, learning_rate, warmup_steps=2_000),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("7b"),
        vocabulary="runs/llama_demo/tokenizer.model",
        positions=128,
        d_ff=344,
        kv_heads=4,
    )
    config.data.lengths = {"targets": 128}
    config.data.batch_size = 16
    config.train.steps = 1000
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)})
    return config
