"""RoBERTa, pretrained by dynamically masked tokens.

    python -m t5x_like.train --config=configs/roberta.py:base \
        --config.workdir=runs/roberta_base --config.data.vocabulary=FOLDER

where FOLDER contains vocab.json and merges.txt, as published or trained by t5x_like.vocabulary.

Sizes: `demo`, `base`, `large`. All but the demo follow the paper (Liu et al. 2019, table 9). The
corpora are your files, JSON Lines with a field "text" in corpora/NAME/*.jsonl.gz, weighted by their
GB of text in section 3.2; configs/bert.py has how to make two of them, and the settings of C4:

| corpus | files | weight |
|---|---|---|
| BookCorpus and English Wikipedia | corpora/books, corpora/wikipedia | 16 |
| CC-News | corpora/cc_news | 76 |
| OpenWebText | corpora/openwebtext | 38 |
| Stories | corpora/stories | 31 |

The paper gives one size for the first two: they are read in proportion to your files.

| table 9 | large | base | here |
|---|---|---|---|
| layers, width, feed-forward, heads | 24, 1024, 4096, 16 | 12, 768, 3072, 12 | model |
| dropout, also in attention | 0.1 | 0.1 | model.dropout |
| warmup steps | 30k | 24k | optimizer.warmup_steps |
| peak learning rate | 4e-4 | 6e-4 | optimizer.learning_rate |
| batch | 8k | 8k | data.batch_size=8192, of 512 tokens |
| weight decay | 0.01 | 0.01 | optimizer.weight_decay; not of norms and biases |
| steps, decay of the rate | 500k, linear | 500k, linear | train.steps, optimizer.schedule |
| Adam's epsilon, beta 1, beta 2 | 1e-6, 0.9, 0.98 | 1e-6, 0.9, 0.98 | optimizer |
| gradient clipping | 0.0 | 0.0 | none |

Expected: in table 3 a base model on BERT's corpora reaches a held-out perplexity of 3.68, a loss of
1.30, after 125k steps of 2k sequences at a rate of 7e-4.

The comparisons of the paper, from the same file:

    --config.data.objective_settings.copies=10                static masking (table 1); 0: dynamic
    --config.data.objective_settings.format=doc_sentences     (table 2; or full_sentences)
    --config.data.objective_settings.format=segment_pair --config.model.head=pretraining
    --config.data.objective_settings.format=sentence_pair --config.model.head=pretraining

The demo learns on documentation strings in minutes on 2 CPU cores. Its held-out loss falls from log
4096 = 8.3 to 5.74 nats (unigram entropy of the targets: 6.37):

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=byte_bpe --size=4096 \
        --output=runs/roberta_demo/vocabulary
    python -m t5x_like.train --config=configs/roberta.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes

# Section 3.2: GB of text. The paper does not give their tokens.
_CORPORA = {
    "books_and_wikipedia": (16, None),
    "cc_news": (76, None),
    "openwebtext": (38, None),
    "stories": (31, None),
}
_RATES = {"base": (6e-4, 24_000), "large": (4e-4, 30_000)}  # peak rate, and warmup steps


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("roberta", size)
    recipes.mixture(config, _CORPORA, folders={"books_and_wikipedia": ("books", "wikipedia")})
    recipes.masked_language_modeling(config, "roberta", length=512)
    config.data.objective_settings = {"format": "full_sentences", "copies": 0}
    config.data.batch_size = 8192
    config.train.steps = 500_000
    learning_rate, warmup_steps = _RATES[size]
    config.optimizer = {
        "name": "adamw",
        "b2": 0.98,
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        **recipes.linear(config, learning_rate, warmup_steps=warmup_steps),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("base"), vocabulary="runs/roberta_demo/vocabulary", positions=64
    )
    config.data.lengths = {"inputs": 64}
    config.data.batch_size = 32
    config.train.steps = 1500
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)})
    config.evaluate.every = 250
    return config
