"""Weights in 8 bits beside float32: bytes of the loaded parameters, and the change of logits.

    python -m benchmarks.int8_weights FOLDER [FOLDER ...] --texts FILE [--rows 64] [--length 128]

Each folder is a run, a checkpoint or a folder in Hugging Face's format of a decoder. It is loaded
twice, and reads the same rows: the beginnings of the first lines of a file that have so many
tokens. The table has the root of the mean square of the change of a logit, relative to the standard
deviation of the logits; how often the likeliest token is the same; and the mean cross-entropy of
the next token with the weights in float32 and in 8 bits, in nats.
"""

import itertools
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import from_pretrained, reading, vocabularies
from t5x_like.config import one_line_errors
from t5x_like.experiment import command_line
from t5x_like.pretrained import Pretrained, int8_weights

_BATCH = 8  # rows
_HEAD = ("model", "MB", "MB in 8 bits", "change", "same token", "nats", "nats in 8 bits")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = command_line.ArgumentParser(__doc__, prog="python -m benchmarks.int8_weights")
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--texts", required=True, metavar="FILE")
    parser.add_argument("--rows", type=command_line.count, default=64)
    parser.add_argument("--length", type=command_line.count, default=128)
    given = parser.parse_args(arguments)
    print("  ".join(_HEAD))
    with one_line_errors():
        for folder in given.folders:
            made = compare(folder, given.texts, rows=given.rows, length=given.length)
            print(folder, *(f"{value:.4g}" for value in made), sep="  ", flush=True)


def compare(folder: str, texts: str, *, rows: int, length: int) -> list[float]:
    """Return the numbers of a line of the table.

    Raises:
        ValueError: the model is not a decoder, or the file has too few long lines.
    """
    exact, small = (from_pretrained(folder, param_dtype=one) for one in ("float32", "int8"))
    if exact.module.sides != ("decoder",):
        raise ValueError(f"{folder} has a {exact.system}: a decoder is needed")
    vocabulary = vocabularies.load(exact.vocabulary or folder)
    encoded = (vocabulary.encode(line)[:length] for line in reading.lines(texts))
    tokens = [own for own in itertools.islice(encoded, 100 * rows) if len(own) == length][:rows]
    if len(tokens) < rows:
        raise ValueError(f"--texts={texts}: {len(tokens)} of {rows} lines have {length} tokens")
    parts = np.array_split(np.array(tokens), -(-rows // _BATCH))
    sums = np.sum([_sums(exact, small, part) for part in parts], axis=0)
    squares, changes, same, *nats, positions = sums
    sizes = [int8_weights.number_of_bytes(one.params) / 1e6 for one in (exact, small)]
    return [*sizes, (changes / squares) ** 0.5, *(one / positions for one in (same, *nats))]


def _sums(exact: Pretrained, small: Pretrained, tokens: np.ndarray) -> list[float]:
    """Return sums over all positions but the last of each row."""
    logits = [
        np.asarray(one(input_ids=tokens).logits, np.float64)[:, :-1] for one in (exact, small)
    ]
    centered = [one - one.mean(axis=-1, keepdims=True) for one in logits]
    right = tokens[:, 1:, None]
    nats = [
        -np.take_along_axis(jax.nn.log_softmax(jnp.asarray(one)), right, axis=-1).sum()
        for one in logits
    ]
    same = np.argmax(logits[0], axis=-1) == np.argmax(logits[1], axis=-1)
    squares, changes = (np.square(one).sum() for one in (centered[0], centered[1] - centered[0]))
    return [float(one) for one in (squares, changes, same.sum(), *nats, right.size)]


if __name__ == "__main__":
    main(sys.argv[1:])
