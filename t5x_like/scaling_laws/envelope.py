"""Approach 1: the lower envelope of the training curves, at each number of FLOPs."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from t5x_like.scaling_laws.frontier import Frontier, regress
from t5x_like.scaling_laws.isoflop import budgets
from t5x_like.scaling_laws.law import Vector
from t5x_like.scaling_laws.runs import TrainedRun, columns

_POINTS = 1500
_WINDOW = 0.2  # standard deviation of the smoothing, in log FLOPs
_KEPT = 1000  # maximum points of a smoothed curve


def fit(runs: Sequence[TrainedRun]) -> Frontier | None:
    """Regress the sizes and tokens of the least loss on FLOPs (Hoffmann et al. 2022, section 3.1).

    At 1500 logarithmically spaced numbers of FLOPs, between the ends of the shortest and of the
    longest run, it takes the run whose curve is lowest. If a run has no curve, only the ends of
    runs count, and the points, fewer and coarser, are the runs that no run with at most the same
    budget beats.

    Args:
        runs: runs whose curves were `smoothed`; otherwise the lowest curve is the noisiest.

    Returns:
        None if the points lie on one budget.
    """
    if has_curves(runs):
        flops, best = _lowest_curves(runs)
        chosen = [runs[number] for number in best]
        tokens = np.array([run.d / run.c for run in chosen]) * flops
        return regress(flops, np.array([run.n for run in chosen]), tokens)
    n, d, c, _ = columns(runs)
    kept = _unbeaten(runs)
    return regress(c[kept], n[kept], d[kept])


def has_curves(runs: Sequence[TrainedRun]) -> bool:
    """Return whether all runs have a training curve."""
    return all(run.curve is not None for run in runs)


def _lowest_curves(runs: Sequence[TrainedRun]) -> tuple[np.ndarray, np.ndarray]:
    ends = [run.c for run in runs]
    flops = np.geomspace(min(ends), max(ends), _POINTS)
    losses = np.full((len(runs), _POINTS), np.inf)
    for row, run in zip(losses, runs, strict=True):
        assert run.curve is not None
        tokens, loss = run.curve
        along = np.log(tokens * (run.c / run.d))
        row[:] = np.interp(np.log(flops), along, loss, left=np.inf, right=np.inf)
        # By rounding, the last point of a curve may lie just before the run's end.
        row[np.isclose(flops, run.c, rtol=1e-9)] = loss[-1]
    found = np.isfinite(losses).any(0)
    return flops[found], losses[:, found].argmin(0)


def smoothed(runs: Sequence[TrainedRun]) -> list[TrainedRun]:
    """Return the runs with smoothed training curves.

    At each point a line is fitted to the neighbours, with Gaussian weights in log C: an average
    would be too high on a falling curve, and most so at its end, where runs are compared. A point
    without near neighbours stays as it is. Long curves are thinned to about a thousand points.
    """
    return [
        run if run.curve is None else dataclasses.replace(run, curve=_smooth(*run.curve))
        for run in runs
    ]


def _smooth(tokens: Vector, loss: Vector) -> tuple[Vector, Vector]:
    x = np.log(tokens)
    kept = np.arange(len(x))[:: -math.ceil(len(x) / _KEPT)][::-1]  # keeps the run's end
    return tokens[kept], np.array([_line_at(x[number], x, loss) for number in kept])


def _line_at(at: float, x: Vector, loss: Vector) -> float:
    """Return the value at a point of the line fitted around it."""
    weights = np.exp(-(((x - at) / _WINDOW) ** 2) / 2)
    weights /= weights.sum()
    middle, level = weights @ x, weights @ loss
    away = x - middle
    slope = (weights * away) @ loss / (weights @ away**2 + (1e-3 * _WINDOW) ** 2)
    return float(level + slope * (at - middle))


def _unbeaten(runs: Sequence[TrainedRun]) -> list[int]:
    """Return the best run of each budget, unless a run with a smaller budget beats it."""
    _, _, _, loss = columns(runs)
    kept: list[int] = []
    for group in budgets(runs):
        best = min(group, key=lambda number: loss[number])
        if not kept or loss[best] < loss[kept[-1]]:
            kept.append(best)
    return kept
