"""Compile a training step beside MaxText's for the same slice of TPUs, and compare the programs.

    python3.12 -m venv maxtext && maxtext/bin/pip install 'maxtext[tpu]==0.2.5'
    python -m benchmarks.beside_maxtext --maxtext=maxtext                  all rows
    python -m benchmarks.beside_maxtext --maxtext=maxtext llama2_7b_v5e    only this row
    python -m benchmarks.beside_maxtext --maxtext=maxtext --only=ours      MaxText's as stored

The rows are in benchmarks/beside_maxtext_rows.py, what the table has in
benchmarks/compiled_beside.py. MaxText's side is its own `train_compile`.
"""

import sys
from collections.abc import Sequence

from benchmarks.beside_maxtext_rows import ROWS
from benchmarks.compiled_beside import Comparison, run
from t5x_like.experiment.command_line import ArgumentParser

MAXTEXT = Comparison(
    name="maxtext",
    title="MaxText",
    rows=ROWS,
    packages=("maxtext",),
    advice="'maxtext[tpu]'",
)


def main(arguments: Sequence[str]) -> None:
    """Compile rows and print the table."""
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.beside_maxtext")
    parser.add_argument("names", nargs="*", help="rows to compile; all, if none is named")
    parser.add_argument(
        "--maxtext", metavar="FOLDER", required=True, help="the environment with MaxText"
    )
    parser.add_argument(
        "--only",
        choices=["ours", "maxtext"],
        help="the only side to compile; of the other the stored results are read",
    )
    options = parser.parse_args(arguments)
    run(MAXTEXT, names=options.names, folder=options.maxtext, only=options.only)


if __name__ == "__main__":
    main(sys.argv[1:])
