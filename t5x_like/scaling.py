r"""Scaling laws: fit them to runs, train the runs for a fit, and plan a run by them.

    python -m t5x_like.scaling fit RUNS.csv --json=fit.json --figures=figures
    python -m t5x_like.scaling fit runs/ladder --json=fit.json

`fit` reads a CSV file with the columns N (parameters), D (tokens), C (FLOPs) and loss (nats), or a
folder of finished runs, and fits the three approaches of Hoffmann et al. 2022 (Chinchilla), with
bootstrap intervals and warnings where a fit should not be trusted. docs/scaling.md explains it all.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from t5x_like.config import one_line_errors
from t5x_like.names import choose


def fit(arguments: Sequence[str]) -> None:
    """Fit laws to runs, print them, and write JSON and figures."""
    parser = _Parser(prog="python -m t5x_like.scaling fit", description=__doc__)
    parser.add_argument("source", metavar="RUNS", help="a CSV file, or a folder of runs")
    parser.add_argument("--json", metavar="FILE", help="JSON file for the fits")
    parser.add_argument("--figures", metavar="FOLDER", help="folder for a figure of each approach")
    parser.add_argument("--bootstrap", type=int, default=200, help="resamples (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the resamples (%(default)s)")
    given = parser.parse_args(arguments)
    if given.bootstrap < 0:
        raise ValueError(f"--bootstrap={given.bootstrap} must be 0 or more")
    # After the arguments, and not for --help: these take a second to import.
    from t5x_like.scaling_laws import analysis, figures, runs

    path = runs.find_runs(given.source)
    found = runs.read_csv(path)
    runs.check(found, source=given.source)
    result = analysis.analyse(found, times=given.bootstrap, seed=given.seed)
    print(analysis.text(result))
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(result, indent=2) + "\n")
    if given.figures:
        for file in figures.draw(found, result, pathlib.Path(given.figures)):
            print(f"figure: {file}")


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors, which `one_line_errors` prints as for every command."""

    def __init__(self, **options: str):
        super().__init__(
            **options,  # type: ignore[arg-type]
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see --help)")


_ACTIONS = {"fit": fit}


def main(arguments: Sequence[str]) -> None:
    """Run one of the actions; a bad argument gives one line and exit status 2."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(__doc__ or "")
        return
    with one_line_errors():
        choose("action", arguments[0], _ACTIONS)(arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
