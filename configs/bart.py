r"""BART, pretrained by denoising, and fine-tuned for generation and translation.

    python -m t5x_like.train --config=configs/bart.py:large --config.workdir=runs/bart_large \
        --config.data.vocabulary=FOLDER

where FOLDER contains vocab.json and merges.txt, RoBERTa's as published or trained by
t5x_like.vocabulary.

Sizes: `demo`, `base`, `large`; and to fine-tune a pretrained folder `pairs` and `translation`.
`large` follows the paper (Lewis et al. 2019, section 5.1), on C4 instead of RoBERTa's corpora. If
the paper gives no number, it is RoBERTa's (Liu et al. 2019, table 9):

| section 5.1 | here |
|---|---|
| 12 + 12 layers of width 1024 (`base`, section 4: 6 + 6 of 768) | model |
| text infilling of 30% of the tokens, all sentences permuted | data.objective_settings |
| batch of 8,000, 500,000 steps | data.batch_size, train.steps |
| 512 tokens | data.lengths |
| Adam 0.9, 0.98, 1e-6, decay 0.01, 4e-4 after 30,000 steps, then linear | optimizer |
| dropout 0.1, none in the last 10% of the steps | model.dropout; the two commands below |

    python -m t5x_like.train --config=configs/bart.py:large --config.train.steps=450000 ...
    python -m t5x_like.train --config=configs/bart.py:large --config.model.dropout=0.0 ...

The comparison of the corruptions in section 4, from the same file:

    --config.data.objective_settings.corruptions="('token_deletion',)"
    (or token_masking, text_infilling, sentence_permutation, document_rotation; several in order)

`pairs` fine-tunes a folder or a run for generation (sections 3.3 and 5.3: summaries, answers,
dialogue); `configs/fine_tuning.py` is for classification (section 3.1) and other labels:

    python -m t5x_like.train --config=configs/bart.py:pairs --config.initialize=bart-large \
        --config.workdir=runs/summaries --config.data.settings.files="cnn/*.jsonl" \
        --config.data.settings.inputs=article --config.data.settings.targets=highlights

| section 5.3 | here |
|---|---|
| label smoothing 0.1 | loss.label_smoothing |
| 5 beams, no trigram twice | decode |
| rate, batch, steps: not in the paper; fairseq's for summaries | 3e-5, 64, 20,000 |

`translation` (section 3.4) replaces the token embeddings of a pretrained encoder by a new encoder
of 6 layers. The first stage trains the new encoder, the position embeddings and the query, key and
value projections of the first layer; the second trains all parameters for a few steps:

    python -m t5x_like.train --config=configs/bart.py:translation --config.initialize=bart-large \
        --config.workdir=runs/ro_en --config.data.settings.files="ro-en/*.jsonl" \
        --config.data.settings.inputs=ro --config.data.settings.targets=en
    python -m t5x_like.train --config=configs/bart.py:translation_all \
        --config.initialize=runs/ro_en --config.workdir=runs/ro_en_all ... (the files as before)

`translation` needs a folder of the size `large`, `translation_base` of `base`. The folder must be
in Hugging Face's format (`t5x_like.convert` exports a run), since single layers are frozen. The
paper gives neither steps nor rates; these are a guess.

The demo learns on documentation strings in minutes on 2 CPU cores. Its held-out loss falls from log
4096 = 8.3 to 4.10 nats (unigram entropy of the targets: 6.36):

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=byte_bpe --size=4096 \
        --output=runs/bart_demo/vocabulary
    python -m t5x_like.train --config=configs/bart.py:demo
"""

from typing import Any

import ml_collections

from t5x_like.experiment import recipes
from t5x_like.systems.bart import SIZES, frozen_at_first

_OTHERS = ("demo", "pairs", "translation", "translation_base", "translation_all")


def get_config(size: str = "large") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above."""
    if size == "demo":
        return _demo()
    if size == "pairs":
        return _pairs()
    if size in ("translation", "translation_base"):
        sizes = SIZES["base" if size.endswith("base") else "large"]
        return _translation(3e-4, steps=50_000, frozen=frozen_at_first(sizes))
    if size == "translation_all":
        return _translation(3e-5, steps=5_000, frozen=())
    config = recipes.pretraining("bart", size, others=_OTHERS)
    config.loss = {"z_loss": 0.0, "label_smoothing": 0.0}
    config.data.objective = "bart"
    config.data.objective_settings = {
        "corruptions": ("sentence_permutation", "text_infilling"),
        "rate": 0.3,
        "mean_span": 3.0,
    }
    config.data.lengths = {"inputs": 512, "targets": 512}
    config.data.batch_size = 8000
    config.train.steps = 500_000
    config.optimizer = _adam(config, 4e-4, warmup_steps=30_000)
    config.decode = {"max_new_tokens": 128, "num_beams": 4}
    return config


def _adam(
    config: ml_collections.ConfigDict, learning_rate: float, *, warmup_steps: Any
) -> dict[str, Any]:
    return {
        "name": "adamw",
        "b2": 0.98,
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        **recipes.linear(config, learning_rate, warmup_steps=warmup_steps),
    }


def _fine_tuning(workdir: str, head: str) -> ml_collections.ConfigDict:
    config = recipes.fine_tuning(workdir, head=head)
    config.loss = {"z_loss": 0.0, "label_smoothing": 0.1}
    recipes.text_pairs(config)
    config.data.objective = "marked_text_to_text"
    return config


def _pairs() -> ml_collections.ConfigDict:
    config = _fine_tuning("runs/bart_pairs", "generation")
    config.data.lengths = {"inputs": 1024, "targets": 256}
    config.data.batch_size = 64
    config.train.steps = 20_000
    config.optimizer = _adam(config, 3e-5, warmup_steps=500)
    config.optimizer.clip_norm = 0.1
    config.decode = {"max_new_tokens": 142, "num_beams": 5, "no_repeat_ngram_size": 3}
    return config


def _translation(
    learning_rate: float, *, steps: int, frozen: tuple[str, ...]
) -> ml_collections.ConfigDict:
    config = _fine_tuning("runs/bart_translation", "translation")
    config.model.update({"source_layers": 6, "source_vocab_size": 0, "loop": "unroll"})
    config.data.lengths = {"inputs": 256, "targets": 256}
    config.train.steps = steps
    config.optimizer = _adam(config, learning_rate, warmup_steps=recipes.steps(config) // 10)
    config.optimizer.frozen = frozen
    config.decode = {"max_new_tokens": 256, "num_beams": 5, "length_penalty": 1.0}
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(get_config("base"), vocabulary="runs/bart_demo/vocabulary", positions=64)
    config.data.lengths = {"inputs": 64, "targets": 64}
    config.data.batch_size = 16
    config.train.steps = 1200
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)})
    config.evaluate.every = 250
    config.decode = {"max_new_tokens": 64, "num_beams": 4}
    return config
