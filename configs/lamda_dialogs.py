"""LaMDA fine-tuned on dialogs: to respond, to rate responses, and to do research with tools.

    python -m t5x_like.train --config=configs/lamda_dialogs.py:files \
        --config.initialize=runs/lamda_2b --config.workdir=runs/lamda_dialogs \
        --config.data.settings.train=dialogs.jsonl --config.data.settings.validation=held_out.jsonl
    python -m t5x_like.infer --config=configs/run.py:runs/lamda_dialogs --interactive \
        --config.dialog.retrieval=facts.jsonl

data/dialog_files.py describes the files. The system, its sizes and the vocabulary come from
`initialize`, a run of configs/lamda.py or of any other decoder-only model.

| Thoppilan et al. 2022, section 6 | here |
|---|---|
| <context> RESPONSE <response>, loss on the response | part `generation` of data.settings.parts |
| ... <attribute> <rating>, loss on the rating | part `ratings` |
| TS, <query> and User, <text> | part `research` |
| quality: 6.4K dialogs, 121K turns | data.settings.train |
| safety: 8K dialogs, 48K turns | the same |
| groundedness: 4K dialogs, 40K turns, and 1K, 9K turns, on the toolset's results | the same |
| 16 candidates, top-k of 40, temperature 1 | dialog.candidates, .top_k, .temperature |
| 3 P(sensible) + P(specific) + P(interesting) | dialog.weights |
| candidates below a safety score are dropped; the threshold is not given | dialog.unsafe_above |
| at most 4 calls of the toolset for a turn | dialog.calls |
| optimizer, rate, steps, batch: not in the paper | T5's constant rate of 0.001, 2,000 of 128 rows |

The demo pretrains a small model on generated dialogs (data/generated_dialogs.py) and fine-tunes it,
in minutes on 2 free CPU cores:

    python -m data.generated_dialogs --output=runs/generated_dialogs
    python -m t5x_like.vocabulary --data=data/generated_dialogs.py --size=152 \
        --whole_words 0 1 RESPONSE SENSIBLE SPECIFIC INTERESTING UNSAFE TURN BASE RESEARCH RESULT \
        --output=runs/generated_dialogs/vocabulary.model
    python -m t5x_like.train --config=configs/lamda_dialogs.py:demo_pretraining
    python -m t5x_like.train --config=configs/lamda_dialogs.py:demo
    echo "what does Ada Abel eat ?" | python -m t5x_like.infer --interactive \
        --config=configs/run.py:runs/lamda_dialogs_demo

docs/systems/lamda.md has the commands that filter its pretraining dialogs and train on the rest.
"""

import ml_collections

from t5x_like.experiment import recipes

KINDS = ("files", "demo_pretraining", "demo")
_FOLDER = "runs/generated_dialogs"


def get_config(kind: str = "files") -> ml_collections.ConfigDict:
    """Return the config of one of the kinds above."""
    recipes.check_size("lamda_dialogs", kind, KINDS, kind="kind")
    return {"files": _files, "demo_pretraining": _demo_pretraining, "demo": _demo}[kind]()


def _files() -> ml_collections.ConfigDict:
    config = recipes.fine_tuning("runs/lamda_dialogs")
    config.data.module = "data/dialog_files.py"
    config.data.task = "dialog_files"
    config.data.settings = {
        "train": "",
        "validation": "",
        "parts": ("generation", "ratings", "research"),
        "responses": "good",
        "rates": {},
    }
    config.data.objective = "text_to_text"
    config.data.objective_settings = {"end_inputs": False}
    config.data.converter = "prefix_lm"
    config.data.lengths = {"inputs": 896, "targets": 128}
    config.data.pack = True
    config.loss = {"z_loss": 1e-4, "label_smoothing": 0.0}
    config.train.steps = 2000
    config.optimizer = {"name": "adafactor", "schedule": "constant", "learning_rate": 1e-3}
    config.decode = {"max_new_tokens": 128}
    config.dialog = {
        "candidates": 16,
        "top_k": 40,
        "temperature": 1.0,
        "unsafe_above": 0.5,
        "weights": {"sensible": 3.0, "specific": 1.0, "interesting": 1.0},
        "refusal": "I would rather not answer that.",
        "role": (),
        "calculator": False,
        "translator": "",
        "retrieval": "",
        "calls": 4,
        "seed": 0,
    }
    return config


def _demo_pretraining() -> ml_collections.ConfigDict:
    config = recipes.pretraining("lamda", "2b")
    recipes.language_modeling(config, length=64)
    config = recipes.demo(
        config, vocabulary=f"{_FOLDER}/vocabulary.model", vocab_size=256, d_model=64, d_ff=256
    )
    config.model.head_width = 16
    config.loss.z_loss = 1e-4
    config.workdir = "runs/lamda_dialogs_pretraining"
    config.data.module = "data/generated_dialogs.py"
    config.data.task = "generated_dialogs_text"
    config.data.batch_size = 32
    config.train.steps = 1000
    config.train.log_every = 50
    config.checkpoint.every = config.evaluate.every = 1000
    config.checkpoint.keep = 1
    config.optimizer = {
        "name": "adafactor",
        **recipes.linear(config, 0.02, warmup_steps=recipes.warmup(config, 100)),
    }
    return config


def _demo() -> ml_collections.ConfigDict:
    config = _files()
    config.workdir = "runs/lamda_dialogs_demo"
    config.initialize = "runs/lamda_dialogs_pretraining"
    config.data.vocabulary = f"{_FOLDER}/vocabulary.model"
    config.data.module = "data/generated_dialogs.py"
    config.data.task = "generated_dialogs"
    del config.data.settings["train"], config.data.settings["validation"]
    config.data.settings["filtered"] = ""
    config.data.lengths = {"inputs": 64, "targets": 32}
    config.data.batch_size = 32
    config.train.steps = 1000
    config.train.log_every = 50
    config.checkpoint.every = config.evaluate.every = 1000
    config.checkpoint.keep = 1
    config.optimizer = {
        "name": "adafactor",
        **recipes.linear(config, 0.01, warmup_steps=recipes.warmup(config, 50)),
    }
    config.decode = {"max_new_tokens": 32}
    config.dialog.retrieval = f"{_FOLDER}/facts.jsonl"
    config.evaluate.tasks = ("generated_dialogs_questions", "generated_dialogs_facts")
    config.evaluate.measures = {
        "loss": {},
        "replies": {"every": 1000, "dialog": {"candidates": 16}},
    }
    return config
