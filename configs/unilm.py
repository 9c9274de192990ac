r"""UniLM, pretrained by masked tokens under four attention masks, and fine-tuned for generation.

    python -m t5x_like.train --config=configs/unilm.py:large --config.workdir=runs/unilm_large \
        --config.data.vocabulary=bert-large-cased/vocab.txt --config.initialize=bert-large-cased

Sizes: `demo`, `base`, `large`, and `generation`, which fine-tunes `large`. `base` and `large`
follow the paper (Dong et al. 2019, section 2.4), on C4 instead of Wikipedia and the BooksCorpus:

| section 2.4 | here |
|---|---|
| BERT large, initialized with its weights; cased WordPiece | model; initialize: its folder |
| 1/3 bidirectional, 1/3 sequence-to-sequence, 1/6 each way | data.objective_settings |
| 15% of the tokens: 80% [MASK], 10% random, 10% kept | data.objective=unilm |
| a single token in 80% of the cases, a bigram or trigram in 20% | data.objective=unilm |
| next-sentence prediction in bidirectional rows (2.3) | data.objective=unilm, loss |
| 330 sequences of 512 tokens, 770,000 steps | data.batch_size, data.lengths, train.steps |
| Adam, 3e-5, beta 0.9 and 0.999, decay 0.01 | optimizer |
| warmup of 40,000 steps, then linear decay | optimizer.schedule=linear |
| epsilon 1e-6, gradient norm up to 1.0: of BERT's code, on which it builds | optimizer |
| dropout 0.1, GELU | model.dropout; systems/bert.py |

`generation` (sections 2.5 and 3.1, headlines of Gigaword) reads pairs, and starts from a run above:

    python -m t5x_like.train --config=configs/unilm.py:generation \
        --config.initialize=runs/unilm_large --config.data.settings.files="gigaword/train.jsonl" \
        --config.data.settings.inputs=article --config.data.settings.targets=title \
        --config.data.vocabulary=bert-large-cased/vocab.txt

| sections 2.5 and 3.1 | here |
|---|---|
| only the sequence-to-sequence attention mask | data.objective=masked_targets |
| 70% of the target masked, its end-of-sequence token too | data.objective_settings |
| 64 pairs of 256 tokens, of the source 192 | data.batch_size, data.lengths, target_length |
| 30 epochs of 3.8M pairs, 3e-5 | train.steps, optimizer |
| label smoothing 0.1 | loss.label_smoothing |
| 5 beams, no trigram twice | decode |
| ROUGE F1 | evaluate.measures |

Then generate, and measure:

    python -m t5x_like.infer --config=configs/run.py:runs/unilm_generation --input=in.txt
    python -m t5x_like.evaluate --config=configs/run.py:runs/unilm_generation

The demo learns on documentation strings in minutes on 2 CPU cores. Expect a held-out loss of masked
tokens of 4.93 nats (unigram entropy of the targets: 5.49), and an accuracy of 61% in next-sentence
prediction. It does not yet generate readable text.

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 \
        --output=runs/unilm_demo/vocab.txt
    python -m t5x_like.train --config=configs/unilm.py:demo
"""

import ml_collections

from t5x_like.experiment import recipes


def get_config(size: str = "large") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    if size == "generation":
        return _generation()
    config = recipes.pretraining("unilm", size, others=("demo", "generation"))
    config.loss = {"label_smoothing": 0.0, "predicted": 0.2}
    recipes.masked_language_modeling(config, "unilm", length=512)
    config.data.objective_settings = {
        "bidirectional": 1 / 3,
        "sequence_to_sequence": 1 / 3,
        "left_to_right": 1 / 6,
        "right_to_left": 1 / 6,
    }
    config.data.batch_size = 330
    config.train.steps = 770_000
    config.optimizer = {
        "name": "adamw",
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        **recipes.linear(config, 3e-5, warmup_steps=40_000),
    }
    return config


def _generation() -> ml_collections.ConfigDict:
    config = get_config("large")
    config.workdir = "runs/unilm_generation"
    config.model.head = "generation"
    config.loss.label_smoothing = 0.1
    recipes.text_pairs(config)
    config.data.objective = "masked_targets"
    config.data.objective_settings = {"rate": 0.7, "target_length": 64}
    config.data.lengths = {"inputs": 256}
    config.data.batch_size = 64
    config.train.steps = 30 * 3_800_000 // 64
    config.optimizer.warmup_steps = recipes.steps(config) // 10
    config.evaluate.measures = {
        "loss": {},
        "generation": {"metrics": ("rouge_1", "rouge_2", "rouge_l")},
    }
    config.decode = {"max_new_tokens": 64, "num_beams": 5, "no_repeat_ngram_size": 3}
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("base"),
        vocabulary="runs/unilm_demo/vocab.txt",
        positions=64,
        sep_id=3,  # the ids that t5x_like.vocabulary gives the special tokens
        mask_id=4,
    )
    config.data.lengths = {"inputs": 64}
    config.data.batch_size = 32
    config.train.steps = 1500
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)})
    config.evaluate.every = 250
    return config
