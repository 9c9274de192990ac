"""ELMo's bidirectional language model, pretrained on words and their characters.

    python -m t5x_like.vocabulary --data=data/c4.py --kind=words --size=793471 \
        --limit_chars=5000000000 --output=runs/elmo_original/vocab.txt
    python -m t5x_like.train --config=configs/elmo.py:original \
        --config.data.vocabulary=runs/elmo_original/vocab.txt

Sizes: `demo`, `original`, `medium`, `small`. All but the demo follow the paper (Peters et al. 2018)
and its code (bilm-tf) if the paper gives no number, on C4 instead of the 1B Word Benchmark. For
that: --config.data.module=data/text_files.py with the benchmark's files, a sentence a line, and the
vocabulary file that was released with them.

| section 3.4, code | here (systems/elmo/) |
|---|---|
| words of up to 50 characters; 2048 filters of 7 widths, 2 highway layers | character_cnn.py |
| 2 layers, cells of 4096 numbers, projections to 512, clips at 3, residual | network.py |
| vocabulary of 793,471 words, 8192 sampled in training | model.vocab_size, loss.sampled |
| 3 times 128 rows of 20 words; states are carried from batch to batch | data |
| 10 epochs of 768,648,884 words | train.steps |
| dropout 0.1 | model.dropout |
| Adagrad, 0.2, accumulators from 1, gradient norm up to 10 | optimizer |

The code multiplies the mean loss by 20, the words of a row, before it takes the gradient. Here the
loss is not multiplied; accumulators from 1/400 and a norm up to 0.5 give the same steps.

The paper reports a perplexity of 39.7, the mean of both directions.

The demo learns on the sentences of documentation strings in a few minutes on 2 free CPU cores.
Expect a held-out loss of 5.48 nats after 500 steps and 4.97 at the end, the mean of both directions
(unigram entropy of the words: 6.04):

    python -m t5x_like.vocabulary --data=data/pydocs.py --set prose=True --kind=words --size=8192 \
        --output=runs/elmo_demo/vocab.txt
    python -m t5x_like.train --config=configs/elmo.py:demo

A task on top of the frozen language model, as in the paper, is `word_tagging`,
`word_classification` or `word_question_answering` (data/labelled_files.py):

    python -m t5x_like.train --config=configs/elmo.py:word_tagging \
        --config.initialize=runs/elmo_demo --config.workdir=runs/elmo_tags \
        --config.data.settings.train=tags.jsonl
"""

import ml_collections

from t5x_like.experiment import recipes

UNROLL = 20  # words per row
_TASKS = {
    "word_tagging": "tagging",
    "word_classification": "classification",
    "word_question_answering": "question_answering",
}
_FIELDS: dict[str, dict[str, object]] = {
    "word_tagging": {"words": "words", "tags": "tags", "labels": ()},
    "word_classification": {"text_a": "text_a", "text_b": "", "label": "label", "labels": ()},
    "word_question_answering": {"question": "question", "context": "context", "answers": "answers"},
}


def get_config(size: str = "original") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above, or of a task."""
    if size == "demo":
        return _demo()
    if size in _TASKS:
        return _task(size)
    config = recipes.pretraining("elmo", size, others=("demo", *_TASKS))
    recipes.masked_language_modeling(config, "bidirectional_lm", length=UNROLL)
    config.loss = {"sampled": 8192}
    config.data.continue_rows = True
    config.data.batch_size = 3 * 128
    config.train.steps = 10 * (768_648_884 // (3 * 128 * UNROLL))
    config.optimizer = {
        "name": "adagrad",
        "schedule": "constant",
        "learning_rate": 0.2,
        "initial_accumulator": 1 / UNROLL**2,
        "clip_norm": 10 / UNROLL,
    }
    return config


def _task(objective: str) -> ml_collections.ConfigDict:
    """Return a task's config: a biLSTM on a frozen language model (section 3.3), Adam, 0.001."""
    config = recipes.fine_tuning(f"runs/elmo_{objective}", head=_TASKS[objective])
    config.model.update({"elmo": "input", "mix": "all", "mix_norm": False})
    recipes.labelled_text(config, objective, converter="encoder", fields=_FIELDS[objective])
    config.data.lengths = {"inputs": 64}
    if objective == "word_question_answering":
        config.data.lengths.inputs = 384
        config.data.objective_settings = {"stride": 128, "longest_question": 64}
        config.predict = {"no_answer": False, "null_threshold": 0.0, "longest_answer": 30}
    else:
        config.model.labels = 0  # counted from the data
    config.loss = {"mix_decay": 0.001}
    config.optimizer = {
        "name": "adamw",
        "schedule": "constant",
        "learning_rate": 1e-3,
        "clip_norm": 5.0,
        "frozen": ("words", "lstm"),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = recipes.demo(
        get_config("original"),
        vocabulary="runs/elmo_demo/vocab.txt",
        vocab_size=8192,
        filters=((1, 16), (2, 16), (3, 32), (4, 64)),
        highways=1,
        cell=256,
        d_model=64,
    )
    config.data.settings = {"prose": True}
    config.data.batch_size = 64
    config.loss.sampled = 1024
    config.train.steps = 1000
    config.evaluate.every = 250
    return config
