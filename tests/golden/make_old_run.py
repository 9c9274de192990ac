"""Write old_run/: a run of commit fc00013, from before settings had types, after 4 of 8 steps.

Run it in a checkout of that commit: `XLA_FLAGS=--xla_force_host_platform_device_count=2
JAX_PLATFORMS=cpu python make_old_run.py 4` wrote the folder, and with 8 in place of 4 the numbers
in tests/test_old_runs.py. Two tasks, each with a head and data of its own, exercise most settings.
"""

import json
import random
import sys

from t5x_like import config, systems, train

FOLDER = "tests/golden/old_run"
WORDS = ("red", "green", "blue", "cat", "dog", "fish")


def text(draw):
    return " ".join(draw.choice(WORDS) for _ in range(5))


def write_rows():
    draw = random.Random(0)
    with open(f"{FOLDER}/vocab.txt", "w") as vocabulary:
        vocabulary.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    for split in ("train", "validation"):
        with open(f"{FOLDER}/topics_{split}.jsonl", "w") as rows:
            for _ in range(40):
                one = text(draw)
                animals = sum(word in WORDS[3:] for word in one.split())
                row = {"text_a": one, "label": "animal" if animals > 2 else "color"}
                rows.write(json.dumps(row) + "\n")
        with open(f"{FOLDER}/scores_{split}.jsonl", "w") as rows:
            for _ in range(40):
                one, other = text(draw), text(draw)
                shared = len(set(one.split()) & set(other.split()))
                row = {"text_a": one, "text_b": other, "score": float(shared)}
                rows.write(json.dumps(row) + "\n")


def task(name, head, *, share, labels=None, **fields):
    files = {split: f"{FOLDER}/{name}_{split}.jsonl" for split in ("train", "validation")}
    own = {**files, "name": name, "held_out": 0.1, **fields}
    return {
        "model": {"head": head, **({"labels": labels} if labels else {})},
        "share": share,
        "data": {"task": name, "objective": head, "settings": own},
    }


def settings(steps):
    made = config.defaults()
    made.system = "bert"
    sizes = {"vocab_size": 11, "positions": 16, "layers": 2, "d_model": 16, "d_ff": 32, "heads": 2}
    own = {"dropout": 0.0, "head": "", "labels": 2}
    made.model = systems.find("bert").sizes["base"] | sizes | own
    made.workdir = f"{FOLDER}/run"
    made.data.module = "data/labelled_files.py"
    made.data.task = "labelled_files"
    made.data.vocabulary = f"{FOLDER}/vocab.txt"
    made.data.converter = "encoder"
    made.data.lengths = {"inputs": 16}
    made.data.batch_size, made.data.shards, made.data.shuffle_buffer = 8, 2, 20
    made.data.seed = 3
    topics = {"text_a": "text_a", "text_b": "", "label": "label", "labels": ()}
    scores = {"text_a": "text_a", "text_b": "text_b", "value": "score"}
    made.tasks = {
        "topics": task("topics", "classification", share=2.0, labels=2, **topics),
        "scores": task("scores", "regression", share=1.0, **scores),
    }
    made.optimizer = {
        "name": "adamw",
        "schedule": "linear",
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "decay_steps": 8,
        "weight_decay": 0.01,
    }
    made.train.steps, made.train.log_every = steps, 1
    made.checkpoint.every, made.checkpoint.keep = 4, 1
    made.evaluate.every, made.evaluate.batches = 4, 0
    made.mesh = {"data": 2, "fsdp": 1, "expert": 1, "model": 1}
    return made


if __name__ == "__main__":
    write_rows()
    train.train(settings(int(sys.argv[1])))
