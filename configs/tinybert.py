r"""TinyBERT, a small student of BERT: general distillation, then task distillation in two steps.

    python -m t5x_like.train --config=configs/tinybert.py:4l --config.initialize=bert-base-uncased \
        --config.workdir=runs/tinybert_4l --config.data.vocabulary=bert-base-uncased/vocab.txt

Sizes: `demo`, `4l`, `6l`. All but the demo follow the paper (Jiao et al. 2019, section 4.2), and
its code (huawei-noah/Pretrained-Language-Model) if the paper gives no number, on C4 instead of
Wikipedia:

| general distillation, section 4.2 | here |
|---|---|
| 4 layers, width 312, feed-forward 1,200; 6 layers, 768, 3,072; 12 heads | model |
| BERT base is the teacher, before fine-tuning | model.teacher, initialize |
| g(m) = 3m, or 2m; section 4.6: the top or the bottom layers | model.layer_map |
| attention, hidden states, embeddings, of weight 1; no predictions | loss |
| plain text in rows of 128 tokens | data.objective=unmasked |
| 3 epochs of 2.5 billion words | train.steps, approximately |
| otherwise as BERT: 256 rows, 1e-4, warmup of 10,000 steps, decay 0.01 | optimizer |

For task distillation, TEACHER is a BERT fine-tuned on the task (configs/fine_tuning.py,
configs/pyglue.py) and `initialize` the student. The data settings are copied from the teacher's
run.

    python -m t5x_like.train --config=configs/tinybert.py:intermediate:TEACHER \
        --config.initialize=runs/tinybert_4l --config.workdir=runs/step_1
    python -m t5x_like.train --config=configs/tinybert.py:prediction:TEACHER \
        --config.initialize=runs/step_1 --config.workdir=runs/step_2

| task distillation, section 4.2 | here |
|---|---|
| augmented data, section 3.2 | `python -m data.generators.augment` |
| first the layers: 32 rows, 5e-5, constant (the code) | `intermediate` |
| 20 epochs; 10 of MNLI, QQP and QNLI, 50 of CoLA | train.steps = epochs * rows / 32 |
| then the predictions: 16 or 32 rows, 1e-5, 2e-5 or 3e-5, 3 epochs | `prediction` |
| temperature 1 | loss.temperature |
| rows of 64 tokens for single sentences, of 128 for pairs | data.lengths |
| numbers (STS-B): the labels, not the teacher's (the code) | loss.labels |

The ablations of tables 2 and 3: `loss.attention=0`, `loss.hidden=0` or `loss.embedding=0` in the
first step, `loss.prediction=0` with `loss.labels=1` in the second; `model.start=random` without
general distillation. configs/studies/tinybert.py has them as arms.

The demo is a student of 2 layers and width 32, whose teacher has 4 layers and width 64. Expect a
held-out loss of 0.90 after its 400 steps (attention 0.50, hidden states 0.30, embeddings 0.10):

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 \
        --output=runs/bert_demo/vocab.txt
    python -m t5x_like.train --config=configs/bert.py:demo --config.workdir=runs/bert_4_layers \
        --config.model.layers=4 --config.model.d_model=64 --config.model.d_ff=256
    python -m t5x_like.train --config=configs/tinybert.py:demo
"""

import pathlib

import ml_collections

from configs import bert, fine_tuning
from t5x_like.experiment import recipes
from t5x_like.pretrained.weight_source import Source, data_settings, open_source
from t5x_like.systems.tinybert import HEADS, student_of

STEPS = ("intermediate", "prediction")


def get_config(size: str = "4l") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above, or STEP:FOLDER of task distillation."""
    step, _, folder = size.partition(":")
    if step in STEPS:
        return _task(step, folder)
    if size == "demo":
        return _demo()
    config = recipes.pretraining(
        "tinybert", size, others=("demo", *(f"{step}:FOLDER" for step in STEPS))
    )
    config.loss = {"attention": 1.0, "hidden": 1.0, "embedding": 1.0}
    recipes.masked_language_modeling(config, "unmasked", length=128)
    config.data.objective_settings = {"short_rate": 0.05}
    config.data.batch_size = 256
    config.train.steps = 300_000
    config.optimizer = {
        "name": "adamw",
        "frozen": ("teacher", "head"),  # no loss reads the head
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        **recipes.linear(config, 1e-4, warmup_steps=10_000),
    }
    return config


def _task(step: str, folder: str) -> ml_collections.ConfigDict:
    """Return the config of a step of task distillation; the student is in `initialize`."""
    if not folder:
        raise ValueError(
            f"configs/tinybert.py:{step} lacks its teacher: give the folder of a fine-tuned "
            f"encoder, configs/tinybert.py:{step}:FOLDER"
        )
    path = pathlib.Path(folder).expanduser()
    teacher = open_source(path)
    head = teacher.config.get("head")
    if head not in HEADS:
        raise ValueError(
            f"configs/tinybert.py:{step}:{folder}: this model has the head {head!r}; a task's "
            f"teacher has one of {', '.join(HEADS)}: fine-tune it first (configs/fine_tuning.py)"
        )
    config = fine_tuning.get_config(head)
    config.workdir = f"runs/tinybert_{path.name}_{step}"
    config.model.update({"labels": teacher.config["labels"], "start": "folder"})
    config.model.teacher = {"system": teacher.system, **teacher.config, "folder": folder}
    _read_as(config, teacher)
    weights = dict.fromkeys(("attention", "hidden", "embedding"), float(step == "intermediate"))
    target = "labels" if head == "regression" else "prediction"
    weights |= {"prediction": 0.0, "labels": 0.0, target: float(step == "prediction")}
    config.loss = {**weights, "temperature": 1.0}
    config.optimizer = {"name": "adamw", "frozen": ("teacher",), "epsilon": 1e-6}
    config.optimizer.weight_decay = 0.01
    schedule = {"schedule": "constant", "learning_rate": 5e-5}
    if step == "prediction":
        schedule = recipes.linear(config, 3e-5, warmup_steps=recipes.steps(config) // 10)
    config.optimizer.update(schedule)
    return config


def _read_as(config: ml_collections.ConfigDict, teacher: Source) -> None:
    """Copy the data settings of the teacher's run, if its folder is a run."""
    data = data_settings(teacher)
    for name in ("module", "settings", "task", "objective_settings", "lengths", "batch_size"):
        if name in data:
            config.data[name] = data[name]


def _demo() -> ml_collections.ConfigDict:
    config = get_config("4l")
    sizes = {"layers": 4, "d_model": 64, "d_ff": 256}
    teacher = bert.get_config("demo").model.to_dict() | sizes
    student = student_of("bert", teacher, layers=2, d_model=32, d_ff=128)
    recipes.demo(config, vocabulary="runs/bert_demo/vocab.txt", **student)
    config.initialize = "runs/bert_4_layers"
    config.data.lengths = {"inputs": 32}
    config.data.batch_size = 32
    config.train.steps = 400
    config.optimizer.update(
        {"b2": 0.98, "learning_rate": 2e-3, "warmup_steps": recipes.warmup(config, 50)}
    )
    config.evaluate.every = 100
    return config
