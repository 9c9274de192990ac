r"""DistilBERT, a student with half the layers of its teacher.

    python -m t5x_like.train --config=configs/distilbert.py:base --config.initialize=TEACHER \
        --config.workdir=runs/distilbert_base --config.data.vocabulary=TEACHER/vocab.txt

TEACHER is a run, a checkpoint or a folder in Hugging Face's format; for `base` it has the size of
BERT base. For a teacher of another size or system, give its folder instead of a size; the student
gets its vocabulary, its width and half of its layers:

    python -m t5x_like.train --config=configs/distilbert.py:runs/roberta_base ...

Sizes: `demo`, `base`, or a folder. All but the demo follow the paper (Sanh et al. 2019), and its
code (examples/distillation of transformers) if the paper gives no number, on C4 instead of BERT's
text:

| section 2 and 3, code | here |
|---|---|
| every other layer of the teacher, no segment embeddings, no pooler | systems/distilbert.py |
| loss weights 5 (soft targets), 2 (masked tokens), 1 (cosine) | loss |
| temperature 2 | loss.temperature |
| batches of up to 4,000 rows, by gradient accumulation | data.batch_size, train.microbatches |
| no next-sentence prediction, dynamic masking | data.objective_settings |
| AdamW, 5e-4, beta 0.9 and 0.98, epsilon 1e-6, no decay, gradient norm up to 5 | optimizer |
| 3 epochs of 3.3 billion words | train.steps, approximately |
| warmup of 5%, then linear decay | optimizer.schedule=linear |

Distillation during fine-tuning, the paper's "DistilBERT (D)" (section 4.1, table 2: 86.9 F1 on
SQuAD 1.1, 85.8 without). The folder after the colon is a teacher fine-tuned with one of the heads
`classification`, `tagging` and `question_answering` (`configs/fine_tuning.py`), and `initialize` is
the student to fine-tune. The data settings come from configs/fine_tuning.py, the labels from the
teacher's run:

    python -m t5x_like.train --config=configs/distilbert.py:runs/bert_squad \
        --config.initialize=runs/distilbert_base --config.workdir=runs/distilbert_squad \
        --config.data.settings.train=train-v1.1.json --config.train.steps=8200

| the authors' code (run_squad_w_distillation.py) | here |
|---|---|
| half of the loss of the labels, half of the divergence | loss.labels, loss.soft_targets |
| temperature 2 | loss.temperature |
| 3e-5, 3 epochs, rows of 384 tokens 128 apart | optimizer, train.steps, data |

The teacher of the demo is BERT's demo, which is trained first. On 2 free CPU cores this takes about
three minutes, and the student one or two. The student is initialized with layers of its teacher:
expect a held-out loss of masked tokens of 5.00 nats after 100 steps and 4.91 at the end, and a
divergence from the teacher that falls from 0.040 to 0.028:

    python -m t5x_like.vocabulary --data=data/pydocs.py --kind=wordpiece --size=4096 \
        --output=runs/bert_demo/vocab.txt
    python -m t5x_like.train --config=configs/bert.py:demo
    python -m t5x_like.train --config=configs/distilbert.py:demo
"""

import pathlib

import ml_collections

from configs import fine_tuning
from t5x_like.experiment import recipes
from t5x_like.losses.distillation import DISTILLED
from t5x_like.pretrained.weight_source import Source, data_settings, open_source
from t5x_like.systems.distilbert import SIZES, student_of

_DEMO_TEACHER = "runs/bert_demo"


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Return the config of one of the sizes above, or of a student of the teacher in a folder."""
    if size == "demo":
        return _demo()
    if size in SIZES:
        config = recipes.pretraining("distilbert", size)
    else:
        teacher, name = open_source(pathlib.Path(size).expanduser()), pathlib.Path(size).name
        if teacher.config.get("head") in DISTILLED:
            return _fine_tuning(teacher, size)
        student = student_of(teacher.system, teacher.config)
        config = recipes.pretraining("distilbert", name, sizes={name: student})
        config.initialize = size
    config.loss = {"masked_lm": 2.0, "soft_targets": 5.0, "cosine": 1.0, "temperature": 2.0}
    recipes.masked_language_modeling(config, "bert", length=512)
    config.data.objective_settings = {"next_sentence": False}
    config.data.batch_size = 4000
    config.train.microbatches = 10
    config.train.steps = 6_000
    config.optimizer = {
        "name": "adamw",
        "frozen": ("teacher",),
        "b2": 0.98,
        "epsilon": 1e-6,
        "clip_norm": 5.0,
        **recipes.linear(config, 5e-4, warmup_steps=recipes.steps(config) // 20),
    }
    config.checkpoint.every = 500
    config.evaluate.every = 500
    return config


def _fine_tuning(teacher: Source, folder: str) -> ml_collections.ConfigDict:
    """Return the config of a student that learns from a teacher fine-tuned on the same data."""
    config = fine_tuning.get_config(teacher.config["head"])
    config.workdir = f"runs/distilbert_{pathlib.Path(folder).name}"
    config.model.labels = teacher.config["labels"]
    config.model.teacher = {"system": teacher.system, **teacher.config, "folder": folder}
    if "labels" in config.data.settings:
        # In the order of the teacher's run; a Hugging Face folder has no names here.
        own = data_settings(teacher).get("settings", {})
        config.data.settings.labels = tuple(own.get("labels", ()))
    config.loss = {"labels": 0.5, "soft_targets": 0.5, "temperature": 2.0}
    config.optimizer.frozen = ("teacher",)
    config.optimizer.learning_rate = 3e-5
    return config


def _demo() -> ml_collections.ConfigDict:
    config = get_config(_DEMO_TEACHER)
    student = config.model.to_dict()  # it has the teacher's width
    recipes.demo(config, vocabulary=f"{_DEMO_TEACHER}/vocab.txt", **student)
    config.data.lengths = {"inputs": 64}
    config.data.batch_size = 32
    config.train.microbatches = 1
    config.train.steps = 600
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = recipes.warmup(config, 50)
    config.checkpoint.every = 300
    config.evaluate.every = 100
    return config
