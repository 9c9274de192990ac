"""The config of a T5 that trains in seconds on a few hundred lines, for tests of the commands."""

import os
import pathlib

import ml_collections

from t5x_like.config import defaults
from t5x_like.systems.t5 import SIZES

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def get_config(folder: str) -> ml_collections.ConfigDict:
    """The config of a run in `folder`, which gets the text too."""
    config = defaults()
    config.workdir = f"{folder}/run"
    config.model = SIZES["small"] | {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "d_model": 32,
        "d_ff": 48,
        "heads": 2,
        "d_kv": 8,
        "vocab_size": 384,
        "dropout": 0.1,
    }
    config.data.module = "data/text_files.py"
    config.data.settings = {"files": _text(pathlib.Path(folder)), "held_out": 0.2}
    config.data.task = "text_files"
    config.data.vocabulary = "bytes"
    config.data.lengths = {"inputs": 32, "targets": 16}
    config.data.batch_size = 8
    config.data.shards = 2
    config.data.shuffle_buffer = 50
    config.train.steps = 4
    config.train.log_every = 1
    config.optimizer = {
        "name": "adafactor",
        "schedule": "constant",
        "learning_rate": 0.01,
        "min_dim_size_to_factor": 16,
    }
    config.checkpoint.every = 2
    config.evaluate.every = 0
    config.evaluate.batches = 2
    config.decode.max_new_tokens = 6
    return config


def _text(folder: pathlib.Path) -> str:
    """A file of lines that are all different, made by the first process that asks for it."""
    text = folder / "text.txt"
    if not text.exists():
        folder.mkdir(parents=True, exist_ok=True)
        lines = (
            f"{number} {' '.join(WORDS[(number + i) % 10] for i in range(10))}"
            for number in range(300)
        )
        part = text.with_suffix(f".{os.getpid()}")
        part.write_text("\n".join(lines) + "\n")
        part.rename(text)
    return str(text)
