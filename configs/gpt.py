"""GPT: pretrained as a language model, then fine-tuned on labelled text.

    python -m t5x_like.train --config=configs/gpt.py:base --config.workdir=runs/gpt_base \
        --config.data.vocabulary=FOLDER

FOLDER contains vocab.json and merges.txt, from `openai-community/openai-gpt` or trained by `python
-m t5x_like.vocabulary --kind=gpt_bpe`. Sizes: `demo`, `base`, and `lstm`, an LSTM of 2,048 units
instead of the Transformer (section 5, table 5).

| Radford et al. 2018, section 4.1 | here |
|---|---|
| 12 layers, 768 wide, 12 heads, 3072 inner; GELU; learned positions | model |
| batch of 64 sequences of 512 tokens | data.batch_size, data.lengths.targets |
| BPE of 40,000 merges | data.vocabulary, 40,478 pieces |
| BooksCorpus, 100 epochs | C4 (BooksCorpus is not distributed), 2,400,000 steps |
| Adam, rate 2.5e-4, warmup of 2,000 steps, then a cosine to 0 | optimizer |
| dropout 0.1, decay 0.01, weights N(0, 0.02) | model.dropout, optimizer, systems/gpt.py |

100 epochs of BooksCorpus are about 2.4 million steps, if it has 0.8 billion words or one billion
tokens; the paper gives neither number. The authors' code clips the gradient norm to 1.

The demo learns on documentation strings in minutes on 2 free CPU cores. Expect a held-out loss of
3.90 nats at the end (unigram entropy of the targets: 5.82):

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=gpt_bpe --size=4096 \
        --output=runs/gpt_demo/vocabulary
    python -m t5x_like.train --config=configs/gpt.py:demo

Fine-tuning starts from a run or a folder in Hugging Face's format, and reads your files
(data/labelled_files.py):

    python -m t5x_like.train --config=configs/gpt.py:classification --config.initialize=openai-gpt \
        --config.workdir=runs/reviews --config.data.settings.train=reviews.jsonl

Kinds: `classification` (one text), `entailment` (a premise and a hypothesis, `text_b`),
`similarity` (two texts, in both orders), `regression` (the same with a number, as in STS-B),
`multiple_choice` (at most `--config.data.objective_settings.choices=4` answers).

Only the first n layers of the folder, and its embeddings (section 5, figure 2):
`--config.initialize_layers=n`.

| Radford et al. 2018, sections 3.2 and 4.1 | here |
|---|---|
| L3 = L2 + 0.5 L1 | loss.auxiliary |
| batch 32, rate 6.25e-5, 3 epochs | data.batch_size, optimizer, train.steps = 3 * examples / 32 |
| linear decay with warmup over 0.2% of training | optimizer.schedule, warmup_steps |
| dropout 0.1 before the classifier | model.dropout, the folder's if not set |

Expect near 91.3% on SST-2, 89.9% on SNLI, 70.3 F1 on QQP, a Pearson correlation of 82.0 on STS-B
and 86.5% on the Story Cloze Test with the published weights (tables 2 to 4), and over 90% in
seconds on the small files of tests/test_gpt_fine_tuning.py.
"""

import ml_collections

from t5x_like.experiment import recipes

KINDS = {
    "classification": "gpt_classification",
    "entailment": "gpt_classification",
    "similarity": "gpt_similarity",
    "regression": "gpt_regression",
    "multiple_choice": "gpt_multiple_choice",
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes or kinds above."""
    if size in KINDS:
        return _fine_tuning(size)
    if size == "demo":
        return _demo()
    config = recipes.pretraining("gpt", size, others=("demo", *KINDS))
    recipes.language_modeling(config, length=512)
    config.data.batch_size = 64
    config.train.steps = 2_400_000
    config.optimizer = {
        "name": "adamw",
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        **recipes.cosine(config, 2.5e-4, warmup_steps=2_000),
        "end_learning_rate": 0.0,
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(get_config("base"), vocabulary="runs/gpt_demo/vocabulary", positions=128)
    config.data.lengths = {"targets": 128}
    config.data.batch_size = 16
    config.train.steps = 1000
    config.optimizer.update({"learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 100)})
    return config


def _fine_tuning(kind: str) -> ml_collections.ConfigDict:
    fields: dict[str, object] = {"text_a": "text_a", "text_b": ""}
    model: dict[str, object] = {"head": "classification", "labels": 0}
    if kind == "multiple_choice":
        model = {"head": "multiple_choice"}
        fields |= {"choices": "choices", "answer": "answer"}
    elif kind == "regression":
        model = {"head": "regression"}
        fields |= {"value": "value"}
    else:
        fields |= {"label": "label", "labels": ()}
    if kind in ("entailment", "similarity", "regression"):
        fields["text_b"] = "text_b"
    config = recipes.fine_tuning(f"runs/gpt_{kind}", added_tokens=3, **model)
    config.loss = {"auxiliary": 0.5}
    recipes.labelled_text(config, KINDS[kind], converter="decoder_rows", fields=fields)
    if kind == "multiple_choice":
        config.data.objective_settings = {"choices": 4}
    config.optimizer = {
        "name": "adamw",
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        **recipes.linear(config, 6.25e-5, warmup_steps=recipes.steps(config) // 500),
    }
    return config
