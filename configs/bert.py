"""BERT, pretrained by masked tokens and next sentences.

    python -m t5x_like.train --config=configs/bert.py:base --config.workdir=runs/bert_base \
        --config.data.vocabulary=vocab.txt

Sizes: `demo`, `base`, `large`. All but the demo follow the paper (Devlin et al. 2018, appendix
A.2), on C4 in place of the BooksCorpus and Wikipedia:

| appendix A.2 | here |
|---|---|
| 256 sequences, 1,000,000 steps | data.batch_size, train.steps |
| 128 tokens for 90% of the steps, then 512 | phases: `short`, then `long` |
| Adam, 1e-4, beta 0.9 and 0.999, decay 0.01 | optimizer: adamw; no decay of norms and biases |
| warmup of 10,000 steps, then linear decay | optimizer.schedule=linear, decay_steps=1,000,000 |
| dropout 0.1, GELU | model.dropout; systems/bert.py |
| 15% of the tokens: 80% [MASK], 10% random, 10% kept | data.objective=bert |
| half of the second sentences are random | data.objective=bert |

Whole words are masked, as in a later release, by --config.data.objective_settings.whole_word=True.
Without next sentences:

    --config.data.objective_settings.next_sentence=False --config.model.head=masked_lm

The demo learns on documentation strings in some three minutes on 2 free CPU cores. Expect a
held-out loss of masked tokens of 5.09 nats at the end, where the unigram entropy of the targets is
5.66, and 75% of the next sentences told:

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 \
        --output=runs/bert_demo/vocab.txt
    python -m t5x_like.train --config=configs/bert.py:demo
    python -m t5x_like.infer --config=configs/bert.py:demo --examples=5
"""

import ml_collections

from t5x_like.config import defaults
from t5x_like.systems.bert import SIZES


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """The config of one of the sizes above."""
    if size == "demo":
        return _demo()
    if size not in SIZES:
        raise ValueError(f"configs/bert.py has no size {size!r}: choose demo, {', '.join(SIZES)}")
    config = defaults()
    config.system = "bert"
    config.workdir = f"runs/bert_{size}"
    config.model = SIZES[size]
    config.data.module = "data/c4.py"
    config.data.task = "c4_en"
    config.data.objective = "bert"
    config.data.objective_settings = {"whole_word": False, "next_sentence": True}
    config.data.converter = "encoder"
    config.data.lengths = {"inputs": 128}
    config.data.batch_size = 256
    config.train.steps = 1_000_000
    config.train.phases = ("short", "long")
    config.phases = {
        "short": {"steps": 900_000},
        "long": {"steps": 100_000, "lengths": {"inputs": 512}},
    }
    config.optimizer = {
        "name": "adamw",
        "b1": 0.9,
        "b2": 0.999,
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "schedule": "linear",
        "learning_rate": 1e-4,
        "warmup_steps": 10_000,
        "decay_steps": config.train.steps,
    }
    config.checkpoint.every = 5_000
    config.evaluate.every = 5_000
    return config


def _demo() -> ml_collections.ConfigDict:
    config = get_config("base")
    config.workdir = "runs/bert_demo"
    config.model.update(
        {"vocab_size": 4096, "positions": 128, "layers": 2, "d_model": 128, "d_ff": 512, "heads": 4}
    )
    config.model.dropout = 0.0  # the run sees no text twice
    config.data.module = "data/pydocs.py"
    config.data.task = "pydocs"
    config.data.vocabulary = "runs/bert_demo/vocab.txt"
    config.data.batch_size = 32
    config.train.steps = 1500
    config.train.log_every = 20
    config.phases = {
        "short": {"steps": 1350, "lengths": {"inputs": 64}},
        "long": {"steps": 150, "lengths": {"inputs": 128}},
    }
    config.optimizer.update(
        {
            "b2": 0.98,  # a short run: held-out 5.44 at step 500, with 0.999 5.99
            "learning_rate": 2e-3,
            "warmup_steps": 100,
            "decay_steps": config.train.steps,
        }
    )
    config.checkpoint.every = 500
    config.evaluate.every = 250
    return config
