"""Compile a training step beside T5X's or transformers' for the same slice of TPUs, and compare.

    python3.12 -m venv flax
    flax/bin/pip install 'jax[tpu]==0.10.2' 'flax==0.12.8' optax 'transformers<5' seqio clu \
        gin-config cached_property tensorboard setuptools
    python -m benchmarks.beside_flax --flax=flax --t5x=T5X t5_xxl_v4        a row of T5X
    python -m benchmarks.beside_flax --flax=flax --t5x=T5X --flaxformer=FLAXFORMER switch_c_v4
    python -m benchmarks.beside_flax --flax=flax bert_large_v5e             a row of transformers
    python -m benchmarks.beside_flax --flax=flax --only=ours bert_large_v5e   theirs as stored

T5X is a clone of github.com/google-research/t5x, and FLAXFORMER of github.com/google/flaxformer,
which are not installed; Flaxformer also needs aqtp==0.2.0 and chex. The rows are in
benchmarks/beside_flax_rows.py, what the table has in benchmarks/compiled_beside.py, and how the
other side is compiled in benchmarks/beside_flax_theirs.py.
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence

from benchmarks.beside_flax_rows import ROWS
from benchmarks.compiled_beside import Comparison, run
from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser

# {flag: the file by which its source is known}
_SOURCES = {"t5x": "t5x/trainer.py", "flaxformer": "flaxformer/sharding.py"}


def comparison(names: Sequence[str], sources: Mapping[str, str | None]) -> Comparison:
    """Return the comparison of these rows, or of all if there are none.

    Args:
        names: the rows.
        sources: {flag: its folder; None if it is not given}.

    Raises:
        ValueError: a row needs a source whose folder is missing or is something else.
    """
    for name in names or ROWS:
        for flag in ROWS[name].settings.get("sources", ()) if name in ROWS else ():
            if sources[flag] is None:
                raise ValueError(f"the row {name} needs --{flag}, the folder of its source")
    given = {flag: pathlib.Path(folder) for flag, folder in sources.items() if folder}
    for flag, folder in given.items():
        if not (folder / _SOURCES[flag]).is_file():
            raise ValueError(
                f"--{flag}={str(folder)!r} is not the source of {flag}: it has no {_SOURCES[flag]}"
            )
    return Comparison(
        name="flax",
        title="T5X or transformers",
        rows=ROWS,
        packages=("flax", "optax", "transformers", "seqio"),
        advice="'jax[tpu]' flax optax 'transformers<5' seqio clu gin-config cached_property "
        "tensorboard setuptools",
        options=tuple(str(folder.absolute()) for folder in given.values()),
    )


def main(arguments: Sequence[str]) -> None:
    """Compile rows and print the table."""
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.beside_flax")
    parser.add_argument("names", nargs="*", help="rows to compile; all, if none is named")
    parser.add_argument("--flax", metavar="FOLDER", required=True, help="the environment with Flax")
    parser.add_argument("--t5x", metavar="FOLDER", help="T5X's source, for its rows")
    parser.add_argument("--flaxformer", metavar="FOLDER", help="its source, for rows with experts")
    parser.add_argument(
        "--only",
        choices=["ours", "flax"],
        help="the only side to compile; of the other the stored results are read",
    )
    options = parser.parse_args(arguments)
    with one_line_errors():
        compared = comparison(options.names, {flag: getattr(options, flag) for flag in _SOURCES})
    run(compared, names=options.names, folder=options.flax, only=options.only)


if __name__ == "__main__":
    main(sys.argv[1:])
