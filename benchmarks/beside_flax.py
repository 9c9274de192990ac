"""Compile a training step beside T5X's or transformers' for the same slice of TPUs, and compare.

    python3.12 -m venv flax
    flax/bin/pip install 'jax[tpu]==0.10.2' 'flax==0.12.8' optax 'transformers<5' seqio clu \
        gin-config cached_property tensorboard setuptools
    python -m benchmarks.beside_flax --flax=flax --t5x=SOURCE t5_xxl_v4     a row of T5X
    python -m benchmarks.beside_flax --flax=flax bert_large_v5e             a row of transformers
    python -m benchmarks.beside_flax --flax=flax --only=ours bert_large_v5e   theirs as stored

SOURCE is a clone of github.com/google-research/t5x, which is not installed. The rows are in
benchmarks/beside_flax_rows.py, what the table has in benchmarks/compiled_beside.py, and how the
other side is compiled in benchmarks/beside_flax_theirs.py.
"""

if __name__ == "__main__":
    # Before the imports below, which take seconds: help and errors are quick.
    from t5x_like.experiment.command_line import ArgumentParser

    PARSER = ArgumentParser(__doc__, prog="python -m benchmarks.beside_flax")
    PARSER.add_argument("names", nargs="*", help="rows to compile; all, if none is named")
    PARSER.add_argument("--flax", metavar="FOLDER", required=True, help="the environment with Flax")
    PARSER.add_argument("--t5x", metavar="FOLDER", help="T5X's source, for its rows")
    PARSER.add_argument(
        "--only",
        choices=["ours", "flax"],
        help="the only side to compile; of the other the stored results are read",
    )
    ARGUMENTS = PARSER.parse_args()

import pathlib
from collections.abc import Sequence

from benchmarks.beside_flax_rows import ROWS
from benchmarks.compiled_beside import Comparison, run
from t5x_like.config import one_line_errors


def comparison(names: Sequence[str], t5x: str | None) -> Comparison:
    """Return the comparison of these rows, or of all if there are none.

    Args:
        names: the rows.
        t5x: T5X's source; None if no row needs it.

    Raises:
        ValueError: a row needs T5X's source, and the folder is missing or is something else.
    """
    needs = [name for name in names or ROWS if name in ROWS and "gin" in ROWS[name].settings]
    if needs and t5x is None:
        raise ValueError(f"the row {needs[0]} needs --t5x, a folder with T5X's source")
    if t5x is not None and not (pathlib.Path(t5x) / "t5x" / "trainer.py").is_file():
        raise ValueError(f"--t5x={t5x!r} is not T5X's source: it has no t5x/trainer.py")
    return Comparison(
        name="flax",
        title="T5X or transformers",
        rows=ROWS,
        packages=("flax", "optax", "transformers", "seqio"),
        advice="'jax[tpu]' flax optax 'transformers<5' seqio clu gin-config cached_property "
        "tensorboard setuptools",
        options=() if t5x is None else (str(pathlib.Path(t5x).absolute()),),
    )


if __name__ == "__main__":
    with one_line_errors(ValueError):
        COMPARISON = comparison(ARGUMENTS.names, ARGUMENTS.t5x)
    run(COMPARISON, names=ARGUMENTS.names, folder=ARGUMENTS.flax, only=ARGUMENTS.only)
