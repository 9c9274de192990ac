"""GPT: pretrained as a language model, then fine-tuned on labelled text.

    python -m t5x_like.train --config=configs/gpt.py:base --config.workdir=runs/gpt_base \
        --config.data.vocabulary=FOLDER

FOLDER holds vocab.json and merges.txt: those of Hugging Face's `openai-community/openai-gpt`, or
trained by `python -m t5x_like.vocabulary --kind=gpt_bpe`. Sizes: `demo`, `base`.

| Radford et al. 2018, section 4.1 | here |
|---|---|
| 12 layers, 768 wide, 12 heads, 3072 inner; GELU; learned positions | model |
| batch of 64 sequences of 512 tokens | data.batch_size, data.lengths.targets |
| BPE of 40,000 merges | data.vocabulary, 40,478 pieces |
| BooksCorpus, 100 epochs | C4 (of BooksCorpus nothing is distributed), 2,400,000 steps |
| Adam, rate 2.5e-4, up over 2,000 steps, then a cosine to 0 | optimizer |
| dropout 0.1, decay 0.01, weights N(0, 0.02) | model.dropout, optimizer, systems/gpt.py |

100 epochs of BooksCorpus are some 2.4 million steps if it has 0.8 billion words and they are one
billion tokens; the paper counts neither. The authors' code clips the gradient's norm to 1.

The demo learns on documentation strings in minutes on 2 free CPU cores. Expect a
held-out loss of 3.90 nats at the end, where the unigram entropy of the targets is 5.82:

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=gpt_bpe --size=4096 \
        --output=runs/gpt_demo/vocabulary
    python -m t5x_like.train --config=configs/gpt.py:demo

Fine-tuning starts from a folder, Hugging Face's or a run's, and reads your files, as
data/labelled_files.py says:

    python -m t5x_like.train --config=configs/gpt.py:classification --config.initialize=openai-gpt \
        --config.workdir=runs/reviews --config.data.settings.train=reviews.jsonl

Kinds: `classification` (of a text), `entailment` (of a premise and a hypothesis, `text_b`),
`similarity` (of two texts, in both orders), `multiple_choice` (`--config.data.objective_settings.
choices=4` of at most as many).

| Radford et al. 2018, sections 3.2 and 4.1 | here |
|---|---|
| L3 = L2 + 0.5 L1 | loss.auxiliary |
| batch 32, rate 6.25e-5, 3 epochs | data.batch_size, optimizer, train.steps = 3 * examples / 32 |
| linear decay with warmup over 0.2% of training | optimizer.schedule, warmup_steps |
| dropout 0.1 before the classifier | model.dropout, the folder's if not set |

Expect of the published weights near 91.3% on SST-2, 89.9% on SNLI, 70.3 F1 on QQP and 86.5% on
the Story Cloze Test (tables 2 to 4), of files as small as those of tests/test_gpt_fine_tuning.py
over 90% in seconds.
"""

import ml_collections
from ml_collections.config_dict import placeholder

from t5x_like.config import defaults
from t5x_like.systems.gpt import SIZES

KINDS = {
    "classification": "gpt_classification",
    "entailment": "gpt_classification",
    "similarity": "gpt_similarity",
    "multiple_choice": "gpt_multiple_choice",
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """The config of one of the sizes or kinds above."""
    if size in KINDS:
        return _fine_tuning(size)
    if size == "demo":
        return _demo()
    if size not in SIZES:
        known = ", ".join(("demo", *SIZES, *KINDS))
        raise ValueError(f"configs/gpt.py has no size {size!r}: choose {known}")
    config = defaults()
    config.system = "gpt"
    config.workdir = f"runs/gpt_{size}"
    config.model = SIZES[size]
    config.loss = {"z_loss": 0.0, "label_smoothing": 0.0}
    config.data.module = "data/c4.py"
    config.data.task = "c4_en"
    config.data.objective = "language_modeling"
    config.data.converter = "decoder"
    config.data.lengths = {"targets": 512}
    config.data.batch_size = 64
    # References, so that the schedule follows --config.train.steps.
    steps = ml_collections.FieldReference(2_400_000)
    config.train.steps = steps
    config.optimizer = {
        "name": "adamw",
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "schedule": "cosine",
        "learning_rate": 2.5e-4,
        "end_learning_rate": 0.0,
        "warmup_steps": 2_000,
        "decay_steps": steps,
    }
    config.checkpoint.every = 5_000
    config.evaluate.every = 5_000
    return config


def _demo() -> ml_collections.ConfigDict:
    config = get_config("base")
    config.workdir = "runs/gpt_demo"
    config.model.update(
        {"vocab_size": 4096, "positions": 128, "layers": 2, "d_model": 128, "d_ff": 512, "heads": 4}
    )
    config.model.dropout = 0.0  # the run sees no text twice
    config.data.module = "data/pydocs.py"
    config.data.task = "pydocs"
    config.data.vocabulary = "runs/gpt_demo/vocabulary"
    config.data.lengths = {"targets": 128}
    config.data.batch_size = 16
    config.train.steps = 1000
    config.train.log_every = 20
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": 100})
    config.checkpoint.every = 500
    config.evaluate.every = 200
    return config


def _fine_tuning(kind: str) -> ml_collections.ConfigDict:
    config = defaults()
    config.system = ""  # with the sizes of the folder `initialize`
    config.workdir = f"runs/gpt_{kind}"
    config.model = {"head": "classification", "added_tokens": 3, "labels": 0}
    config.loss = {"auxiliary": 0.5}
    config.data.module = "data/labelled_files.py"
    config.data.task = "labelled_files"
    config.data.objective = KINDS[kind]
    config.data.converter = "decoder_rows"
    config.data.lengths = {"inputs": 128}
    config.data.batch_size = 32
    fields: dict[str, object] = {"text_a": "text_a", "text_b": ""}
    if kind == "multiple_choice":
        config.model = {"head": "multiple_choice", "added_tokens": 3}
        config.data.objective_settings = {"choices": 4}
        fields |= {"choices": "choices", "answer": "answer"}
    else:
        fields |= {"label": "label", "labels": ()}
    if kind in ("entailment", "similarity"):
        fields["text_b"] = "text_b"
    config.data.settings = {"train": "", "validation": "", "held_out": 0.1, **fields}
    for setting, of in {"dropout": float, "dtype": str}.items():
        config.model[setting] = placeholder(of)  # as in the folder
    # References, so that the schedule follows --config.train.steps.
    steps = ml_collections.FieldReference(3000)
    config.train.steps = steps
    config.optimizer = {
        "name": "adamw",
        "schedule": "linear",
        "learning_rate": 6.25e-5,
        "warmup_steps": steps // 500,
        "decay_steps": steps,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
    }
    config.evaluate.every = 500
    config.evaluate.batches = 0
    config.checkpoint.keep = 1
    return config
