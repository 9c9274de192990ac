"""SpanBERT, pretrained by masked spans, predicted in place and from their boundaries.

    python -m t5x_like.train --config=configs/spanbert.py:large \
        --config.workdir=runs/spanbert_large --config.data.vocabulary=vocab.txt

Sizes: `demo`, `base`, `large`. All but the demo follow the paper (Joshi et al. 2020, section 4.2),
on C4 instead of the BooksCorpus and Wikipedia:

| section 4.2 | here |
|---|---|
| BERT large; cased WordPiece | model; data.vocabulary |
| 256 sequences of up to 512 tokens, 2.4M steps | data.batch_size, data.lengths, train.steps |
| one sequence per row, up to the end of its document | data.objective=spanbert |
| dynamic masking | data.objective=spanbert |
| AdamW, 1e-4, beta 0.9 and 0.999, epsilon 1e-8 | optimizer |
| decoupled weight decay 0.1 | optimizer.weight_decay; not of norms and biases |
| warmup of 10,000 steps, then linear decay | optimizer.schedule=linear |
| dropout 0.1, GELU | model.dropout; systems/spanbert.py |
| 15% of the tokens, in spans of geometric length, p=0.2, 1 to 10 words | data.objective=spanbert |
| position embeddings of width 200 within a span | systems/spanbert.py, model.span_places |

The comparisons of section 6, from the same file:

    --config.model.head=masked_lm                            only span masking
    --config.data.objective=roberta --config.model.head=masked_lm \
        --config.data.objective_settings="{'format': 'doc_sentences'}"    (BERT, one sequence)

The demo learns on documentation strings in minutes on 2 CPU cores. The held-out loss of masked
tokens falls from log 4096 = 8.3 to 5.07 nats, and from the boundaries to 5.04 (unigram entropy of
the targets: 5.59):

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 --keep_case \
        --output=runs/spanbert_demo/vocab.txt
    python -m t5x_like.train --config=configs/spanbert.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes


def get_config(size: str = "large") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    config = recipes.pretraining("spanbert", size)
    recipes.masked_language_modeling(config, "spanbert", length=512)
    config.data.batch_size = 256
    config.train.steps = 2_400_000
    config.optimizer = {
        "name": "adamw",
        "epsilon": 1e-8,
        "weight_decay": 0.1,
        **recipes.linear(config, 1e-4, warmup_steps=10_000),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("base"), vocabulary="runs/spanbert_demo/vocab.txt", positions=64
    )
    config.data.lengths = {"inputs": 64}
    config.data.batch_size = 32
    config.train.steps = 1500
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)})
    config.evaluate.every = 250
    return config
