"""XLNet, pretrained by permutation language modeling, with a memory of the preceding text.

    python -m t5x_like.train --config=configs/xlnet.py:base --config.workdir=runs/xlnet_base \
        --config.data.vocabulary=FILE

where FILE is a vocabulary with [CLS], [SEP] and [MASK], such as the folder of a published XLNet
(32,000 pieces).

Sizes: `demo`, `base`, `large`. All but the demo follow the paper (Yang et al. 2019, section 3.1 and
appendix A.4.1) and the released code (github.com/zihangdai/xlnet):

| appendix A.4.1 | large | here |
|---|---|---|
| layers, width, feed-forward, heads | 24, 1024, 4096, 16 | model |
| dropout, also in attention | 0.1 | model.dropout |
| length, batch | 512, 8192 | data.lengths, data.batch_size |
| learning rate, decay | 4e-4, linear | optimizer |
| steps, warmup | 500k, 40k | train.steps, optimizer.warmup_steps |
| Adam's epsilon, weight decay | 1e-6, 0.01 | optimizer; norms and biases do not decay; u, v, w do |
| gradient norm; end of the decay (the code) | 1.0; 0.001 of the rate | optimizer |
| partial prediction K | 6 | data.objective_settings.rate=1/6: 85 of 512 tokens |
| memory, reused tokens (the code) | 384, 256 | model.memory, data.objective_settings.reuse |

The corpora are your files, JSON Lines with a field "text" in corpora/NAME/*.jsonl.gz (section 3.1):

| corpus | files | billions of pieces | share |
|---|---|---|---|
| English Wikipedia | corpora/wikipedia | 2.78 | 8.5% |
| BooksCorpus | corpora/books | 1.09 | 3.3% |
| Giga5 | corpora/giga5 | 4.75 | 14.4% |
| ClueWeb 2012-B | corpora/clueweb | 4.30 | 13.1% |
| Common Crawl | corpora/common_crawl | 19.97 | 60.7% |

Each row of a batch is a shard of the data, read in order (`data.continue_rows`), so that the data
needs at least as many documents as a batch has rows. The memory needs text that continues, which a
mixture that takes turns does not have: all files are read once in an epoch, as in the released
code. The shares above follow from the corpora's sizes, and yours from your files.
data/filters/books.py and data/filters/wikipedia.py make two of the corpora; C4 instead:

    --config.data.module=data/c4.py --config.data.task=c4_en --config.data.settings='{}'

The ablation of the paper (table 6), from the same file:

    --config.model.memory=0
    --config.data.objective_settings.form=tail
    --config.data.objective_settings.backward=0.0

The demo learns on documentation strings in minutes on 2 CPU cores. Expect a held-out loss of 3.87
nats at the end (unigram entropy of the targets: 5.56):

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 \
        --output=runs/xlnet_demo/vocab.txt
    python -m t5x_like.train --config=configs/xlnet.py:demo
"""

import ml_collections
from ml_collections import FieldReference

from t5x_like.experiment import recipes

_CORPORA = ("wikipedia", "books", "giga5", "clueweb", "common_crawl")


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("xlnet", size)
    config.data.module = "data/text_files.py"
    config.data.task = "text_files"
    config.data.settings = {
        "files": tuple(f"corpora/{name}/*.jsonl.gz" for name in _CORPORA),
        "text": "text",
        "held_out": 0.001,
    }
    recipes.masked_language_modeling(config, "xlnet", length=512)
    config.data.objective_settings = {
        "form": "spans",
        "rate": 1 / 6,
        "reuse": 0.5,
        "backward": 0.5,
    }
    config.data.batch_size = 8192
    config.data.continue_rows = True
    config.train.steps = 500_000
    rate = FieldReference(4e-4)
    config.optimizer = {
        "name": "adamw",
        "b1": 0.9,
        "b2": 0.999,
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        **recipes.linear(config, rate, warmup_steps=40_000),
        "end_learning_rate": rate / 1000,
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(get_config("base"), vocabulary="runs/xlnet_demo/vocab.txt", memory=48)
    config.data.lengths = {"inputs": 64}
    config.data.batch_size = 32
    config.train.steps = 1500
    config.optimizer.update(
        {"b2": 0.98, "learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)}
    )
    config.evaluate.every = 250
    return config
