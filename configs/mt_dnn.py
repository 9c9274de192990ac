"""MT-DNN: one encoder fine-tuned on many tasks at once, each batch from one task.

    python -m t5x_like.train --config=configs/mt_dnn.py:glue --config.initialize=bert-base-uncased \
        --config.data.settings.folder=glue --config.workdir=runs/mt_dnn

`initialize` is a BERT: a folder of Hugging Face's, a run, or a checkpoint. Sizes and vocabulary
come from there, as do the encoder and the pooler, which the tasks share; the heads are randomly
initialized. `folder` has GLUE's files (data/glue.py).

| Liu et al. 2019, section 4.2 | here |
|---|---|
| Adamax, 5e-5, batches of 32 | optimizer, data.batch_size |
| linear decay, warmup over 0.1 of the steps, gradients clipped to 1 | optimizer |
| 5 epochs | train.steps: 5 times the 29,663 batches of all eight tasks |
| each batch from one task, shuffled within an epoch (algorithm 1) | tasks.NAME.batches |
| texts of 512 word pieces | data.lengths (128 is enough for most of GLUE) |
| dropout 0.1 in the heads, of MNLI 0.3, of CoLA 0.05 | model.dropout, tasks.NAME.model.dropout |
| stochastic answer network, 5 steps (section 3) | head pair_classification, model.answer_steps |
| QNLI as ranking, in the first release of GLUE | as a pair: the present QNLI has no candidates |

To fine-tune on a single task from the shared encoder: `--config.initialize=runs/mt_dnn` with
configs/fine_tuning.py, configs/pyglue.py, or this config with one entry in `tasks`.

The demo has four tasks of PyGLUE, one of each kind: topic (one text), similarity (a number, with
300 rows), paraphrase (a pair) and ranking. It starts from any BERT, such as the demo of
configs/bert.py, here a narrower network:

    python -m t5x_like.train --config=configs/bert.py:demo --config.workdir=runs/small_bert \
        --config.model.layers=4 --config.model.d_model=64 --config.model.d_ff=256
    python -m t5x_like.train --config=configs/mt_dnn.py:demo --config.initialize=runs/small_bert
    python -m t5x_like.evaluate --config=configs/run.py:runs/mt_dnn_demo
"""

from typing import Any

import ml_collections
from ml_collections.config_dict import placeholder

from t5x_like.experiment import recipes
from t5x_like.systems.mt_dnn import SIZES

# The settings of the network that come from the folder `initialize`.
_OPEN: dict[type, tuple[str, ...]] = {
    int: ("vocab_size", "positions", "token_types", "layers", "d_model", "d_ff", "heads"),
    float: ("dropout",),
    str: ("dtype",),
}

_GLUE: dict[str, dict[str, Any]] = {
    "cola": {"head": "classification", "dropout": 0.05},
    "sst2": {"head": "classification"},
    "stsb": {"head": "regression"},
    "qqp": {"head": "pair_classification"},
    "mrpc": {"head": "pair_classification"},
    "mnli": {"head": "pair_classification", "dropout": 0.3},
    "qnli": {"head": "pair_classification"},
    "rte": {"head": "pair_classification"},
}


def get_config(kind: str = "glue") -> ml_collections.ConfigDict:
    """Return the config of one of the sets of tasks above."""
    recipes.check_size("mt_dnn", kind, ("glue", "demo"), kind="set of tasks")
    config = recipes.fine_tuning(f"runs/mt_dnn_{kind}")
    config.system = "mt_dnn"
    config.model = {**SIZES["base"], "head": ""}  # each task has its own
    with config.ignore_type():
        for type_, names in _OPEN.items():
            config.model.update({name: placeholder(type_) for name in names})
    config.data.converter = "encoder"
    config.data.batch_size = 32
    config.checkpoint.keep = 1
    if kind == "demo":
        _demo(config)
    else:
        _of_glue(config)
    config.optimizer = {
        "name": "adamax",
        "clip_norm": 1.0,
        **recipes.linear(
            config,
            2e-3 if kind == "demo" else 5e-5,
            warmup_steps=recipes.steps(config) // 10,
        ),
    }
    return config


def task(name: str, head: str, *, batches: int | str = "auto", **more: Any) -> dict[str, Any]:
    """Return a task of `config.tasks`.

    Args:
        name: its name in the data module.
        head: its head of the network.
        batches: batches per epoch.
        more: settings of `data`, and `dropout` of the head.
    """
    model: dict[str, Any] = {"head": head}
    if head in ("classification", "pair_classification"):
        model["labels"] = 0  # counted from the data
    if "dropout" in more:
        model["dropout"] = more.pop("dropout")
    data = {"task": name, "objective": head, **more}
    if head == "ranking":
        data |= {
            "objective": "multiple_choice",
            "objective_settings": {"choices": 4},
            "converter": "encoder_rows",
        }
    return {"model": model, "batches": batches, "data": data}


def _of_glue(config: ml_collections.ConfigDict) -> None:
    config.data.module = "data/glue.py"
    config.data.settings = {"folder": ""}
    config.data.lengths = {"inputs": 512}
    config.tasks = {name: task(f"glue_{name}", **own) for name, own in _GLUE.items()}
    config.train.steps = 5 * 29_663
    config.evaluate.every = config.checkpoint.every = 5_000


def pyglue() -> dict[str, Any]:
    """Return the four tasks of the demo, on a part of their rows."""

    def of(name: str, head: str, *, share: float = 1.0, **more: Any) -> dict[str, Any]:
        return task(f"pyglue_{name}", head, settings={"share": share}, **more)

    return {
        "topic": of("topic", "classification", share=0.3),
        "similarity": of("similarity", "regression", share=0.0375),
        "paraphrase": of("paraphrase", "pair_classification"),
        "ranking": of("ranking", "ranking", share=0.0625, batch_size=8),
    }


def _demo(config: ml_collections.ConfigDict) -> None:
    config.data.module = "data/pyglue.py"
    config.data.lengths = {"inputs": 48}
    config.tasks = pyglue()
    config.model.dropout = 0.1
    config.train.steps = 660  # 3 epochs of 75 + 10 + 72 + 63 batches
    config.train.log_every = 55
    config.evaluate.every = config.checkpoint.every = 220
    config.evaluate.batches = 0
    config.evaluate.measures = {"loss": {}, "benchmark": {"every": 660}}
