"""Compile a training step beside MaxText's for the same slice of TPUs, and compare the programs.

    python3.12 -m venv maxtext && maxtext/bin/pip install 'maxtext[tpu]==0.2.5'
    python -m benchmarks.beside_maxtext --maxtext=maxtext                  all rows
    python -m benchmarks.beside_maxtext --maxtext=maxtext llama2_7b_v5e    only this row
    python -m benchmarks.beside_maxtext --maxtext=maxtext --only=ours      MaxText's as stored

The rows are in benchmarks/beside_maxtext_rows.py, what the table has in
benchmarks/compiled_beside.py. MaxText's side is its own `train_compile`.
"""

if __name__ == "__main__":
    # Before the imports below, which take seconds: help and errors are quick.
    from t5x_like.experiment.command_line import ArgumentParser

    PARSER = ArgumentParser(__doc__, prog="python -m benchmarks.beside_maxtext")
    PARSER.add_argument("names", nargs="*", help="rows to compile; all, if none is named")
    PARSER.add_argument(
        "--maxtext", metavar="FOLDER", required=True, help="the environment with MaxText"
    )
    PARSER.add_argument(
        "--only",
        choices=["ours", "maxtext"],
        help="the only side to compile; of the other the stored results are read",
    )
    ARGUMENTS = PARSER.parse_args()

from benchmarks.beside_maxtext_rows import ROWS
from benchmarks.compiled_beside import Comparison, run

MAXTEXT = Comparison(
    name="maxtext",
    title="MaxText",
    rows=ROWS,
    packages=("maxtext",),
    advice="'maxtext[tpu]'",
)


if __name__ == "__main__":
    run(MAXTEXT, names=ARGUMENTS.names, folder=ARGUMENTS.maxtext, only=ARGUMENTS.only)
