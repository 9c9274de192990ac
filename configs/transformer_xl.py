"""Transformer-XL, pretrained as a language model whose rows continue each other.

    python -m t5x_like.train --config=configs/transformer_xl.py:41m \
        --config.workdir=runs/transformer_xl_41m

Sizes: `demo`; `41m`, `277m`, the models of characters of Dai et al. 2019 (table 2), on the bytes of
C4 instead of enwik8's, for which: --config.data.module=data/text_files.py with files of its text;
and `151m`, `257m`, the models of words of WikiText-103 (table 1).

| the released code | 41m (run_enwik8_base.sh) | 277m (enwik8_large_tpu.sh) | here |
|---|---|---|---|
| layers, width, feed-forward, heads | 12, 512, 2048, 8 | 24, 1024, 3072, 8 | model |
| length of a row, memory in training | 512, 512 | 768, 768 | data.lengths, model.memory |
| memory, longest distance in evaluation | 2100, 820 | 3800, 1000 | see below |
| dropout; of attention weights | 0.1; 0 | 0.15; 0.15 | model.dropout, for both |
| batch, steps | 22, 400k | 64, 400k | data.batch_size, train.steps |
| Adam's rate, warmup, cosine to | 2.5e-4, 0, 0 | 2.5e-4, 4000, 0.004 of it | optimizer |
| gradient norm | 0.25 | 0.25 | optimizer.clip_norm |

| the released code | 151m (run_wt103_base.sh) | 257m (run_wt103_large.sh) | here |
|---|---|---|---|
| layers, width, feed-forward, heads | 16, 410, 2100, 10 | 18, 1024, 4096, 16 | model |
| clusters of words; division of their widths | from 20k, 40k, 200k; 1 | the same; 4 | model |
| length of a row, memory in training | 150, 150 | 384, 384 | data.lengths, model.memory |
| memory, longest distance in evaluation | 640, 400 | 1600, 1000 | model, see below |
| dropout; of attention weights | 0.1; 0 | 0.2; 0.2 | model.dropout, for both |
| batch, steps | 60, 200k | 128, 4000k | data.batch_size, train.steps |
| Adam's rate, warmup, cosine to 0 | 2.5e-4, 0 | 2.5e-4, 16000 | optimizer |

The words' models need `data.vocabulary`, a vocabulary of 267,735 tokens in the order of their
frequency, as adaptive embeddings and softmax assume, and `data.module` with your files. For any
other vocabulary, set model.vocab_size and model.cutoffs=(20000,40000), or () for one softmax.

Row r of a batch continues row r of the batch before (`data.continue_rows`), so that the data needs
at least as many documents as a batch has rows. A trained model is evaluated with a longer memory
(section 3.3 and table 9) in shorter rows, in which tokens attend to equally many tokens:

    python -m t5x_like.evaluate --config=configs/run.py:runs/transformer_xl_41m \
        --config.model.memory=2100 --config.model.same_length=True \
        --config.model.longest_distance=820 --config.data.lengths.targets=80

The demo learns on documentation strings in minutes on 2 free CPU cores. Expect a held-out loss of
4.13 nats at the end, without memory (--config.model.memory=0) 4.18 (unigram entropy of the targets:
6.40):

    python -m t5x_like.vocabulary --data=data/pydocs.py --size=3996 --byte_fallback \
        --output=runs/transformer_xl_demo/vocabulary.model
    python -m t5x_like.train --config=configs/transformer_xl.py:demo
"""

import ml_collections
from ml_collections import FieldReference

from t5x_like.experiment import recipes

_ROWS = {"41m": 22, "277m": 64, "151m": 60, "257m": 128}
_STEPS = {"41m": 400_000, "277m": 400_000, "151m": 200_000, "257m": 4_000_000}
_WARMUP = {"41m": 0, "277m": 4000, "151m": 0, "257m": 16_000}
_END = {"277m": 0.004}  # of the rate


def get_config(size: str = "41m") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("transformer_xl", size)
    recipes.language_modeling(config, length=config.model.memory)
    if not config.model.cutoffs:  # characters
        config.model.vocab_size = 256 + 3
        config.data.vocabulary = "bytes:0"
    config.data.continue_rows = True
    config.data.batch_size = _ROWS[size]
    config.train.steps = _STEPS[size]
    rate = FieldReference(2.5e-4)
    config.optimizer = {
        "name": "adamw",
        "b2": 0.999,
        "weight_decay": 0.0,  # which makes it Adam
        "clip_norm": 0.25,
        **recipes.cosine(config, rate, warmup_steps=_WARMUP[size]),
        "end_learning_rate": rate * _END.get(size, 0.0),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("41m"), vocabulary="runs/transformer_xl_demo/vocabulary.model", memory=64
    )
    config.data.lengths = {"targets": 64}
    config.data.batch_size = 32
    config.train.steps = 1000
    config.optimizer.update(
        {
            "b2": 0.98,
            "clip_norm": 1.0,
            "learning_rate": 2e-3,
            "warmup_steps": recipes.warmup(config, 100),
        }
    )
    return config
