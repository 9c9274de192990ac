"""StructBERT, pretrained by masked tokens, shuffled tokens and three kinds of sentence pairs.

    python -m t5x_like.train --config=configs/structbert.py:base \
        --config.workdir=runs/structbert_base --config.data.vocabulary=vocab.txt

Sizes: `demo`, `base`, `large`. All but the demo follow the paper (Wang et al. 2019, sections 2.2
and 3.1), on C4 instead of the BooksCorpus and Wikipedia:

| sections 2.2 and 3.1 | here |
|---|---|
| BERT base and large, its WordPiece vocabulary | model; data.vocabulary |
| up to 512 tokens, 40 epochs | data.lengths; train.steps and data.batch_size are BERT's |
| Adam, 1e-4, beta 0.9 and 0.999, decay 0.01 | optimizer: adamw; no decay of norms and biases |
| warmup over a tenth of the steps, then linear decay | optimizer.schedule=linear |
| epsilon 1e-6, gradient norm up to 1.0: of BERT's code, on which it builds | optimizer |
| dropout 0.1, GELU | model.dropout; systems/bert.py |
| 15% of the tokens masked; 5% of the others in shuffled trigrams | data.objective_settings |
| a third of the pairs next, previous, random | data.objective=structbert |

The paper's ablations (section 4.3): --config.data.objective_settings.shuffle_rate=0.0 removes the
word objective, --config.model.head=masked_lm the sentence objective.

The demo learns on the sentences of documentation strings in minutes on 2 CPU cores. The held-out
loss of sentence pairs (320 pairs) falls from log 3 = 1.10 to 0.865 nats, an accuracy of 56%, after
staying at chance for the first 750 steps. The loss of masked tokens ends at 5.76, of shuffled
tokens at 5.14:

    python -m t5x_like.vocabulary --data=data/pydocs.py --set prose=True --kind=wordpiece \
        --size=4096 --output=runs/structbert_demo/vocab.txt
    python -m t5x_like.train --config=configs/structbert.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("structbert", size)
    recipes.masked_language_modeling(config, "structbert", length=512)
    config.data.objective_settings = {"rate": 0.15, "shuffle_rate": 0.05}
    config.data.batch_size = 256
    config.train.steps = 1_000_000
    config.optimizer = {
        "name": "adamw",
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        **recipes.linear(config, 1e-4, warmup_steps=recipes.steps(config) // 10),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("base"), vocabulary="runs/structbert_demo/vocab.txt", positions=64
    )
    config.model.loop = "unroll"  # a sixth faster than a scan on a CPU
    config.data.settings.prose = True  # plain sentences, whose order can be predicted
    config.data.lengths = {"inputs": 48}
    config.data.batch_size = 16
    config.train.steps = 3000
    config.optimizer.update({"b2": 0.98, "learning_rate": 1e-3})
    config.optimizer.warmup_steps = recipes.warmup(config, 100)
    config.evaluate.every = 250
    return config
