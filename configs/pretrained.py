r"""A pretrained model, for evaluation or generation without training.

    python -m t5x_like.evaluate --config=configs/pretrained.py:last_word \
        --config.initialize=FOLDER --config.data.settings.files=lambada.jsonl
    python -m t5x_like.infer --config=configs/pretrained.py --config.initialize=FOLDER --interactive

`initialize` is a model of Hugging Face's hub (`openai-community/gpt2`), a folder in its format (`hf
download openai-community/gpt2 --local-dir=gpt2`), a run, or a checkpoint. The system, its settings,
the vocabulary and the lengths come from there. Kinds, with the papers' figures:

| kind | fields of a row | source | expect |
|---|---|---|---|
| `documents` | text | Radford et al. 2019, table 3 | 37.50 word perplexity on WikiText-103 (117M) |
| `last_word` | text | LAMBADA, table 3 | 45.99% accuracy, perplexity 35.13 (117M) |
| `choice` | inputs, choices, targets | Children's Book Test, table 3 | 87.65% common nouns (117M) |
| `in_context` | inputs, targets, choices | Brown et al. 2020, section 2 | by task |
| `summary` | inputs, targets | Radford et al. 2019, section 3.6 | ROUGE-1 29.34 (1.5B) |
| `translation` | inputs, targets | the same, section 3.7 | BLEU 5 (1.5B, English to French) |
| `toxicity` | inputs | Gehman et al. 2020, table 2 | maxima 0.75, 0.51 by Perspective (117M) |
| `arithmetic` | (generated) | Brown et al. 2020, table 3.9 | 2D+ 100.0, 3D+ 80.4, 4D+ 25.5 (175B) |
| `scrambles` | (of your list of words) | the same, table 3.10 | CL 37.9, A1 15.1, RI 67.2 (175B) |
| `analogies` | (generated) | the same, section 3.9.3 | easier than the paper's: chance is 20% |

data/text_files.py reads texts, data/prompted_files.py rows with several fields. `arithmetic`,
`scrambles` and `analogies` evaluate all tasks of data/gpt3_arithmetic.py, data/word_scrambles.py
and data/analogies.py, with the paper's numbers of examples, for which a model needs 2,048 tokens:
fewer are `shots`, or `too_long=fewer_shots`. Evaluation uses the first `evaluate.batches` batches
of the validation split, or the whole split with 0.
"""

from typing import Any

import ml_collections

from data import gpt3_arithmetic, word_scrambles
from t5x_like.config import defaults

_IN_CONTEXT: dict[str, Any] = {
    "kind": "in_context",
    "shots": 0,
    "sweep": (),
    "template": "{inputs}\n{targets}",
    "separator": "\n\n",
    "description": "",
    "by": "likelihood",
    "answer": "Answer:",
    "stop": "\n",
    "sentences": 0,
    "metrics": (),
    "samples": 0,
    "group": "",
    "too_long": "error",
    "seed": 0,
    "pool": 100_000,
}
_FREE: dict[str, Any] = {**_IN_CONTEXT, "by": "generation"}
KINDS: dict[str, dict[str, Any]] = {
    "documents": {"kind": "documents", "stride": 0, "end": True},
    "last_word": {"kind": "last_word"},
    "choice": {"kind": "choice", "blank": "XXXXX"},
    "in_context": _IN_CONTEXT,
    "summary": {
        **_FREE,
        "template": "{inputs}\nTL;DR: {targets}",
        "stop": "",
        "sentences": 3,
        "metrics": ("rouge_1", "rouge_2", "rouge_l"),
    },
    "translation": {
        **_FREE,
        "shots": 5,
        "template": "{inputs} = {targets}",
        "separator": "\n",
        "metrics": ("bleu",),
    },
    "toxicity": {
        "kind": "toxicity",
        "classifier": "",
        "label": "toxic",
        "samples": 25,
        "threshold": 0.5,
    },
    "arithmetic": {
        **_FREE,
        "shots": 50,
        "template": "Q: {inputs}\n\nA: {targets}",
        "metrics": ("accuracy",),
    },
    "scrambles": {
        **_FREE,
        "shots": 100,
        "template": "{inputs} = {targets}",
        "separator": "\n",
        "description": "Please unscramble the letters into a word, and write that word:",
        "metrics": ("accuracy",),
    },
    "analogies": {**_IN_CONTEXT, "shots": 20, "template": "{inputs} {targets}", "separator": "\n"},
}
_OF_TEXTS = ("documents", "last_word")
# {kind: (module of its rows, its tasks, its settings)}
_ROWS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "arithmetic": ("data/gpt3_arithmetic.py", tuple(gpt3_arithmetic.TASKS), {"seed": 0}),
    "scrambles": ("data/word_scrambles.py", tuple(word_scrambles.TASKS), {"words": "", "seed": 0}),
    "analogies": ("data/analogies.py", ("analogies",), {"seed": 0}),
    "toxicity": (
        "data/real_toxicity.py",
        ("real_toxicity_prompts_toxic", "real_toxicity_prompts_nontoxic"),
        {"folder": ""},
    ),
}
# {kind: settings of sampling}
_SAMPLED: dict[str, dict[str, Any]] = {
    "summary": {"do_sample": True, "top_k": 2},
    "toxicity": {"do_sample": True, "top_k": 0, "top_p": 0.9, "max_new_tokens": 20},
}


def get_config(kind: str = "documents") -> ml_collections.ConfigDict:
    """Return the config of one of the kinds above."""
    if kind not in KINDS:
        raise ValueError(f"configs/pretrained.py has no {kind!r}: choose {', '.join(KINDS)}")
    config = defaults()
    config.system = ""  # from the folder `initialize`, like all settings left open here
    config.data.converter = ""
    config.data.lengths = {"inputs": 0, "targets": 0}
    config.data.batch_size = 8
    config.evaluate.batches = 0
    config.evaluate.measures = {kind: {**KINDS[kind], "cleaned": False}}
    if kind in _OF_TEXTS:
        config.data.task = "text_files"
        config.data.module = "data/text_files.py"
        config.data.objective = "language_modeling"
        config.data.settings = {"files": "", "text": "text", "held_out": 1.0}
    elif kind in _ROWS:
        config.data.module, tasks, config.data.settings = _ROWS[kind]
        config.data.task, config.evaluate.tasks = tasks[0], tasks
        config.data.objective = "text_to_text"
    else:
        config.data.module = "data/prompted_files.py"
        config.data.task = "prompted_files"
        config.data.objective = "text_to_text"
        names = {name: name for name in ("inputs", "targets", "choices")}
        config.data.settings = {"train": "", "validation": "", **names}
    config.decode = {}  # the folder's settings, for `infer`: `documents` generate no text
    if kind != "documents":
        greedy = {"max_new_tokens": 100, "num_beams": 1, "do_sample": False}
        sampling = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "seed": 0}
        config.decode = {**greedy, **sampling, **_SAMPLED.get(kind, {})}
    return config
