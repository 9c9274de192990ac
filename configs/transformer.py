r"""The Transformer, trained to translate.

    tfds build wmt14_translate/de-en
    python -m t5x_like.vocabulary --data=data/wmt.py --size=36900 --limit_chars=200000000 \
        --output=runs/wmt14_en_de.model
    python -m t5x_like.train --config=configs/transformer.py:base
    python -m t5x_like.evaluate --config=configs/transformer.py:base --average=5 \
        --config.evaluate.batches=0 --config.evaluate.tasks="('wmt14_en_de_test',)"

Sizes: `demo`, `base`, `big`, and the rows of table 3, named by their letter and what they change:
`a_heads_1`, `a_heads_4`, `a_heads_16`, `a_heads_32`, `b_keys_16`, `b_keys_32`, `c_layers_2`,
`c_layers_4`, `c_layers_8`, `c_model_256`, `c_model_1024`, `c_ff_1024`, `c_ff_4096`,
`d_dropout_0.0`, `d_dropout_0.2`, `d_smoothing_0.0`, `d_smoothing_0.2`, `e_learned_positions`.
data/parallel_text.py reads your own sentence pairs.

| Vaswani et al. 2017 | base | big | here |
|---|---|---|---|
| layers of each half, d_model, d_ff, heads | 6, 512, 2048, 8 | 6, 1024, 4096, 16 | model |
| dropout; label smoothing (5.4) | 0.1; 0.1 | 0.3; 0.1 | model.dropout, loss.label_smoothing |
| Adam: b1, b2, epsilon (5.3) | 0.9, 0.98, 1e-9 | the same | optimizer |
| d_model^-0.5 min(n^-0.5, n 4000^-1.5) (5.3) | peak 7.0e-4 | 4.9e-4 | schedule=warmup_rsqrt |
| steps (5.2) | 100,000 | 300,000 | train.steps |
| source and target tokens per batch (5.1) | some 25,000 | the same | 104 packed rows of 256 |
| shared vocabulary (5.1) | some 37,000 | the same | 36,900 pieces, 100 sentinels |
| checkpoint averaging (6.1) | 5, 10 minutes apart | 20 | --average |
| beams; length penalty; maximal output length (6.1) | 4; 0.6; input + 50 | the same | decode |
| newstest2014, English to German (table 2) | BLEU 27.3 | 28.4 | |
| newstest2013, without averaging (table 3) | perplexity 4.92, BLEU 25.8 | 4.33, 26.4 | |

A step took 0.4 s for base and 1.0 s for big, so that 10 minutes are 1,500 and 600 steps. The paper
does not describe its tokenization for BLEU; sacreBLEU's tokenization differs.

The demo translates sentences from a small grammar (data/tiny_german.py) after a few minutes on 2
free CPU cores. Expect BLEU 100 on held-out sentences and a loss without smoothing of 0.05 nats with
the mean of 5 checkpoints, or 0.08 with only the last; the unigram entropy of the targets is 4.19.
--examples shows some translations:

    python -m t5x_like.vocabulary --data=data/tiny_german.py --size=190 \
        --limit_chars=500000 --output=runs/transformer_demo/vocabulary.model
    python -m t5x_like.train --config=configs/transformer.py:demo
    python -m t5x_like.evaluate --config=configs/transformer.py:demo --average=5
    python -m t5x_like.infer --config=configs/transformer.py:demo --average=5 --examples=5
"""

import ml_collections

from t5x_like.experiment import recipes
from t5x_like.systems.transformer import SIZES

_SMOOTHING = {"d_smoothing_0.0": 0.0, "d_smoothing_0.2": 0.2}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    sizes = SIZES | dict.fromkeys(_SMOOTHING, SIZES["base"])
    config = recipes.pretraining("transformer", size, sizes=sizes)
    config.loss = {"z_loss": 0.0, "label_smoothing": _SMOOTHING.get(size, 0.1)}
    config.data.module = "data/wmt.py"
    config.data.task = "wmt14_en_de"
    config.data.vocabulary = "runs/wmt14_en_de.model"
    config.data.objective = "translation"
    config.data.lengths = {"inputs": 256, "targets": 256}
    config.data.pack = True
    config.data.batch_size = 104
    config.train.steps = 300_000 if size == "big" else 100_000
    d_model = config.model.get_oneway_ref("d_model")
    config.optimizer = {
        "name": "adamw",
        "b1": 0.9,
        "b2": 0.98,
        "epsilon": 1e-9,
        "schedule": "warmup_rsqrt",
        "learning_rate": d_model.to_float() ** -0.5,
        "warmup_steps": 4000,
    }
    config.checkpoint.every = 600 if size == "big" else 1_500
    config.checkpoint.keep = 20 if size == "big" else 5
    config.evaluate.every = 6_000
    config.decode = {
        "num_beams": 4,
        "length_penalty": 0.6,
        "length_penalty_kind": "google_nmt",
        "max_extra_tokens": 50,
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = get_config("base")
    config.workdir = "runs/transformer_demo"
    config.model.update(
        {
            "vocab_size": 290,
            "layers": 2,
            "d_model": 128,
            "d_ff": 512,
            "heads": 4,
            "d_k": 32,
            "d_v": 32,
        }
    )
    config.data.module = "data/tiny_german.py"
    config.data.task = "tiny_german"
    config.data.vocabulary = "runs/transformer_demo/vocabulary.model"
    config.data.lengths = {"inputs": 96, "targets": 96}
    config.data.batch_size = 16
    config.train.steps = 1000
    config.train.log_every = 20
    config.optimizer.warmup_steps = 300
    config.checkpoint.every = 50
    config.evaluate.every = 250
    config.decode.max_extra_tokens = 20
    return config
