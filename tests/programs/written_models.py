"""Writes tiny models of runs for transformers: python -m tests.programs.written_models FOLDER."""

import pathlib
import sys

import flax.traverse_util
import jax.numpy as jnp

from t5x_like.pretrained import from_pretrained
from tests.golden import drawn_weights
from tests.programs import tiny_encoder, tiny_writer

# The system, and a text of its vocabulary.
TEXTS = {"bert": "the cat sat on a [MASK].", "gpt2": "naïve cat", "t5": "a naïve <extra_id_0>."}
_WORDS = ["the", "cat", "sat", "on", "a", "mat", "."]


def write(system: str, folder: pathlib.Path) -> pathlib.Path:
    """Write a run of a system and, from it, a folder that Hugging Face loads; return the folder.

    The parameters are drawn from their names, so that they are the same wherever this runs.
    """
    run = folder / f"{system}_run"
    if system == "bert":
        tiny_encoder.write(run, system, words=_WORDS)
    else:
        tiny_writer.write(run, tiny_writer.settings(system))
    model = from_pretrained(run)
    flat = flax.traverse_util.flatten_dict(model.params, sep="/")
    drawn = {name: jnp.asarray(drawn_weights.draw(name, x.shape)) for name, x in flat.items()}
    model.params = flax.traverse_util.unflatten_dict(drawn, sep="/")
    model.save_pretrained(folder / system)
    return folder / system


if __name__ == "__main__":
    for name in TEXTS:
        write(name, pathlib.Path(sys.argv[1]))
