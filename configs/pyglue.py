"""Fine-tuning on PyGLUE, nine tasks from the documentation of this machine's Python.

    python -m t5x_like.train --config=configs/pyglue.py:topic --config.initialize=runs/bert_demo \
        --config.workdir=runs/topic
    python -m t5x_like.train --config=configs/pyglue.py:text --config.initialize=runs/demo \
        --config.workdir=runs/pyglue

`initialize` is a run, a checkpoint or a folder in Hugging Face's format. A task's name fine-tunes
an encoder with a head: `acceptability`, `topic`, `similarity`, `paraphrase`, `entailment`, `span`,
`continuation` or `ranking`. `gpt_topic` and so on, for all tasks but `span`, fine-tune a GPT on the
same rows, with the head and the auxiliary loss of configs/gpt.py. `text` fine-tunes a T5, or
another model that generates, on all of these tasks and `summary` as text, mixed in proportion to
their rows. To evaluate on the test rows:

    python -m t5x_like.evaluate --config=configs/run.py:runs/topic --config.evaluate.batches=0 \
        --config.evaluate.tasks="('pyglue_topic_test',)"

| | heads, as Devlin et al. 2019, appendix A.3 | text, as Raffel et al. 2020, section 3.1.2 |
|---|---|---|
| rows | 32 (16 of choices) of 64 to 128 tokens | 32 of 128 tokens |
| rate: a demo is small | 1e-4 with a linear decay | Adafactor, 0.02 with a linear decay |
| steps | 750: 3 epochs of 8,000 rows | 2,000 |

With `text`, `pyglue/average` is the mean over all tasks but `similarity`. docs/pyglue.md has the
results of a constant, a bag of words and a rule.
"""

import ml_collections

from t5x_like.experiment import recipes

KINDS = {
    "acceptability": "classification",
    "topic": "classification",
    "similarity": "regression",
    "paraphrase": "classification",
    "entailment": "classification",
    "span": "question_answering",
    "continuation": "multiple_choice",
    "ranking": "multiple_choice",
}
# Pairs of texts that together fill a row.
_LONG = ("similarity", "paraphrase", "entailment", "continuation", "ranking")
# GPT has no head that marks a span.
GPT_KINDS = {f"gpt_{task}": kind for task, kind in KINDS.items() if kind != "question_answering"}
# The metrics in the average over tasks as text; each task counts once. `similarity` is left out,
# since a correlation is undefined if a small model always predicts one number.
_MEASURED = {
    "acceptability": ("matthews",),
    "topic": ("accuracy",),
    "paraphrase": ("accuracy", "f1_binary"),
    "entailment": ("accuracy",),
    "span": ("exact_match", "f1"),
    "continuation": ("accuracy",),
    "ranking": ("f1_binary",),
    "summary": ("rouge_1", "rouge_2", "rouge_l"),
}


def get_config(task: str = "text") -> ml_collections.ConfigDict:
    """Return the config of one of the tasks above, or of all tasks as text."""
    recipes.check_size("pyglue", task, ("text", *KINDS, *GPT_KINDS), kind="task")
    if task in GPT_KINDS:
        config = _gpt_head(task.removeprefix("gpt_"), GPT_KINDS[task])
    else:
        config = _text() if task == "text" else _head(task, KINDS[task])
    config.data.module = "data/pyglue.py"
    config.data.settings = ml_collections.ConfigDict()
    config.evaluate.every = 1000 if task == "text" else 250
    config.evaluate.batches = 10
    config.checkpoint.every = 250
    config.checkpoint.keep = 1
    return config


def _head(task: str, kind: str) -> ml_collections.ConfigDict:
    config = recipes.fine_tuning(f"runs/pyglue_{task}", head=kind)
    config.data.task = f"pyglue_{task}"
    config.data.objective = kind
    has_choices = kind == "multiple_choice"
    config.data.converter = "encoder_rows" if has_choices else "encoder"
    config.data.lengths = {"inputs": 128 if kind == "question_answering" else 64}
    config.data.batch_size = 16 if has_choices else 32
    if has_choices:
        config.data.objective_settings = {"choices": 4}
    if kind == "classification":
        config.model.labels = 0  # counted from the data
    if kind == "question_answering":
        config.data.objective_settings = {"stride": 64, "longest_question": 32}
        config.predict = {"no_answer": False, "longest_answer": 30}
    config.train.steps = 1500 if has_choices else 750
    config.optimizer = {
        "name": "adamw",
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        **recipes.linear(config, 1e-4, warmup_steps=recipes.steps(config) // 10),
    }
    return config


def _gpt_head(task: str, kind: str) -> ml_collections.ConfigDict:
    """Return the config of an encoder's task in GPT's format (Radford et al. 2018, section 3.3)."""
    config = _head(task, kind)
    config.workdir = f"runs/pyglue_gpt_{task}"
    with config.ignore_type():
        config.model.added_tokens = 3  # start, delimiter and extract
    config.loss = {"auxiliary": 0.5}
    config.data.objective = f"gpt_{kind}"
    config.data.converter = "decoder_rows"
    config.data.lengths = {"inputs": 128 if task in _LONG else 64}
    return config


def _text() -> ml_collections.ConfigDict:
    config = recipes.fine_tuning("runs/pyglue")
    config.loss = {"z_loss": 1e-4, "label_smoothing": 0.0}
    config.data.task = "pyglue"
    config.data.objective = "text_to_text"
    config.data.lengths = {"inputs": 128, "targets": 32}
    config.data.batch_size = 32
    config.train.steps = 2000
    # With the paper's constant 1e-3 a network of two layers is near chance after these steps.
    config.optimizer = {
        "name": "adafactor",
        **recipes.linear(config, 0.02, warmup_steps=recipes.steps(config) // 20),
    }
    config.decode = {"max_new_tokens": 32, "num_beams": 1}
    config.evaluate.tasks = tuple(f"pyglue_{task}" for task in ("similarity", *_MEASURED))
    config.evaluate.measures = {"loss": {}, "benchmark": {"every": 1000}}
    config.evaluate.averages = {
        "pyglue": {
            task: tuple(f"pyglue_{task}/benchmark/{metric}" for metric in metrics)
            for task, metrics in _MEASURED.items()
        }
    }
    return config
