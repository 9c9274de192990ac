"""Training runs as points for fits: parameters, tokens, FLOPs and loss, also from CSV files."""

import csv
import dataclasses
import io
import math
import pathlib
from collections.abc import Sequence

import numpy as np

from t5x_like import reading
from t5x_like.names import hint
from t5x_like.research.scaling_laws.law import Vector

COLUMNS = ("N", "D", "C", "loss")
OPTIONAL = ("N_without_embeddings", "decay_tokens", "steps", "run")
LEAST = 6  # minimum runs for the five constants of the parametric law


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """One training run.

    Attributes:
        name: name in messages.
        n: parameters.
        d: training tokens.
        c: training FLOPs.
        loss: final loss in nats.
        n_without_embeddings: parameters without embedding tables; None if unknown.
        decay_tokens: tokens after which the learning rate has decayed; None if unknown, infinite if
            it does not decay.
        steps: updates of the parameters; None if unknown.
        curve: (tokens, loss) along the run, ascending; None if unknown.
    """

    name: str
    n: float
    d: float
    c: float
    loss: float
    n_without_embeddings: float | None = None
    decay_tokens: float | None = None
    steps: float | None = None
    curve: tuple[Vector, Vector] | None = None


def columns(runs: Sequence[TrainedRun]) -> tuple[Vector, Vector, Vector, Vector]:
    """Return the parameters, tokens, FLOPs and losses of the runs."""
    n, d, c, loss = np.array([(run.n, run.d, run.c, run.loss) for run in runs], float).T
    return n, d, c, loss


def check(runs: Sequence[TrainedRun], *, source: str) -> None:
    """Check that a law can be fitted to the runs.

    Raises:
        ValueError: there are too few runs, sizes or numbers of tokens.
    """
    if len(runs) < LEAST:
        raise ValueError(
            f"{source} has {len(runs)} runs: the law has 5 constants and needs {LEAST} runs or more"
        )
    for name, values in (("sizes N", [r.n for r in runs]), ("numbers of tokens D", _d(runs))):
        if len(set(values)) < 3:
            raise ValueError(
                f"{source} has runs of {len(set(values))} {name}: the law needs 3 or more"
            )


def _d(runs: Sequence[TrainedRun]) -> list[float]:
    return [run.d for run in runs]


def read_csv(path: pathlib.Path) -> list[TrainedRun]:
    """Read runs from a CSV file with a header.

    Columns: N parameters, D tokens, C FLOPs and loss in nats. Optional are N_without_embeddings,
    decay_tokens (the tokens after which the learning rate has decayed), steps (updates of the
    parameters), and run: rows with the same value are points of one training curve, and the last
    row is the run itself. Other columns are ignored.

    Raises:
        ValueError: a column is missing, or a value is not a positive number.
        OSError: the file cannot be read.
    """
    file = io.StringIO(reading.text(path), newline="")
    reader = csv.DictReader(file, skipinitialspace=True)
    present = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = present
    missing = [name for name in COLUMNS if name not in present]
    if missing:
        raise ValueError(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}: it has "
            f"{', '.join(present) or 'none'}, and needs {', '.join(COLUMNS)}"
            f" (optional: {', '.join(OPTIONAL)})"
        )
    runs = [_of_row(row, where=f"{path}, line {reader.line_num}") for row in reader]
    return _joined(runs) if "run" in present else runs


def _of_row(row: dict[str, str], *, where: str) -> TrainedRun:
    values = {name: _number(row, name, where) for name in COLUMNS}
    body, decay, steps = (
        _number(row, name, where) if (row.get(name) or "").strip() else None
        for name in OPTIONAL[:3]
    )
    return TrainedRun(
        name=row.get("run") or where,
        n=values["N"],
        d=values["D"],
        c=values["C"],
        loss=values["loss"],
        n_without_embeddings=body,
        decay_tokens=decay,
        steps=steps,
    )


def _number(row: dict[str, str], name: str, where: str) -> float:
    text = (row[name] or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    infinite = math.isinf(value) and name != "decay_tokens"
    if not value > 0 or infinite:
        raise ValueError(f"{where}: {name}={text!r} must be a number above 0")
    return value


def _joined(points: Sequence[TrainedRun]) -> list[TrainedRun]:
    """Join the points of each curve into a run."""
    curves: dict[str, list[TrainedRun]] = {}
    for point in points:
        curves.setdefault(point.name, []).append(point)
    runs = []
    for name, curve in curves.items():
        curve.sort(key=lambda point: point.d)
        if len({point.n for point in curve}) > 1:
            raise ValueError(f"run={name!r} has several N: the points of a run have one")
        tokens = np.array([point.d for point in curve])
        loss = np.array([point.loss for point in curve])
        is_point = len(curve) == 1
        runs.append(dataclasses.replace(curve[-1], curve=None if is_point else (tokens, loss)))
    return runs


def find_runs(source: str) -> pathlib.Path:
    """Return the path of a CSV file or folder of runs.

    Raises:
        ValueError: it does not exist; the message suggests similar names.
    """
    path = pathlib.Path(source).expanduser()
    if not path.exists():
        near = [str(sibling) for sibling in path.parent.glob("*")] if path.parent.is_dir() else []
        raise ValueError(
            f"{source!r} does not exist: give a CSV file or a folder of runs.{hint(source, near)}"
        )
    return path
