"""BERT, pretrained by masked tokens and next sentences.

    python -m t5x_like.train --config=configs/bert.py:base --config.workdir=runs/bert_base \
        --config.data.vocabulary=vocab.txt

Sizes: `demo`, `base`, `large`. All but the demo follow the paper (Devlin et al. 2018, appendix
A.2). The corpora are your files, JSON Lines with a field "text" in corpora/wikipedia/*.jsonl.gz and
corpora/books/*.jsonl.gz: data/filters/wikipedia.py makes them from Wikipedia's dumps,
data/filters/books.py from books. They are weighted by their millions of words in section 3.1; on C4
instead:

    --config.data.module=data/c4.py --config.data.task=c4_en --config.data.settings='{}' \
        --config.evaluate.tasks='()'

| appendix A.2, section 3.1 | here |
|---|---|
| Wikipedia, 2,500 million words, and BooksCorpus, 800 million | data.settings.corpora |
| 256 sequences, 1,000,000 steps | data.batch_size, train.steps |
| 128 tokens for 90% of the steps, then 512 | phases: `short`, then `long` |
| Adam, 1e-4, beta 0.9 and 0.999, decay 0.01 | optimizer: adamw; no decay of norms and biases |
| warmup of 10,000 steps, then linear decay | optimizer.schedule=linear, decay_steps=1,000,000 |
| (code) epsilon 1e-6, gradient norm up to 1.0 | optimizer.epsilon, optimizer.clip_norm |
| dropout 0.1, GELU | model.dropout; systems/bert.py |
| 15% of the tokens: 80% [MASK], 10% random, 10% kept | data.objective=bert |
| half of the second sentences are random | data.objective=bert |

Whole-word masking, as in a later release: --config.data.objective_settings.whole_word=True.
Without next-sentence prediction:

    --config.data.objective_settings.next_sentence=False --config.model.head=masked_lm

On TPUs, whose layers run in a loop, keep the results of products instead of everything, which takes
less memory and time (docs/accelerators.md): --config.model.remat=dots

The demo learns on documentation strings in about three minutes on 2 free CPU cores. Expect a
held-out loss of masked tokens of 5.03 nats at the end (unigram entropy of the targets: 5.63), and
an accuracy of 71% in next-sentence prediction:

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 \
        --output=runs/bert_demo/vocab.txt
    python -m t5x_like.train --config=configs/bert.py:demo
    python -m t5x_like.infer --config=configs/bert.py:demo --examples=5
"""

import ml_collections

from t5x_like.experiment import recipes

# Section 3.1: millions of words. The paper does not give their tokens.
_CORPORA = {"wikipedia": (2_500, None), "books": (800, None)}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("bert", size)
    recipes.mixture(config, _CORPORA)
    recipes.masked_language_modeling(config, "bert", length=128)
    config.data.objective_settings = {"whole_word": False, "next_sentence": True}
    config.data.batch_size = 256
    recipes.phases(
        config,
        short={"steps": 900_000},
        long={"steps": 100_000, "lengths": {"inputs": 512}},
    )
    config.optimizer = {
        "name": "adamw",
        "b1": 0.9,
        "b2": 0.999,
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        **recipes.linear(config, 1e-4, warmup_steps=10_000),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(get_config("base"), vocabulary="runs/bert_demo/vocab.txt", positions=128)
    config.data.batch_size = 32
    recipes.phases(
        config,
        short={"steps": 1350, "lengths": {"inputs": 64}},
        long={"steps": 150, "lengths": {"inputs": 128}},
    )
    # For a short run: the held-out loss at step 500 is 5.44 with b2 = 0.98, 5.99 with 0.999.
    config.optimizer.update(
        {"b2": 0.98, "learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)}
    )
    config.evaluate.every = 250
    return config
