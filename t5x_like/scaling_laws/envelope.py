"""Approach 1: the least loss over training curves at each number of FLOPs."""

from collections.abc import Sequence

import numpy as np

from t5x_like.scaling_laws.frontier import Frontier, regress
from t5x_like.scaling_laws.isoflop import budgets
from t5x_like.scaling_laws.runs import Run, columns

_POINTS = 1500


def fit(runs: Sequence[Run]) -> Frontier | None:
    """Regress the sizes and tokens of the least loss on FLOPs (Hoffmann et al. 2022, section 3.1).

    At 1500 logarithmically spaced numbers of FLOPs, between the ends of the shortest and of the
    longest run, it takes the run whose curve is lowest there. Where a run has no curve, each
    counts at its end alone, and the points are the runs that no run of at most the same budget
    beats: fewer and coarser.

    Returns:
        None where the points lie on one budget.
    """
    if has_curves(runs):
        flops, best = _lowest_curves(runs)
        chosen = [runs[number] for number in best]
        tokens = np.array([run.d / run.c for run in chosen]) * flops
        return regress(flops, np.array([run.n for run in chosen]), tokens)
    n, d, c, _ = columns(runs)
    kept = _unbeaten(runs)
    return regress(c[kept], n[kept], d[kept])


def has_curves(runs: Sequence[Run]) -> bool:
    """Whether all runs have a training curve."""
    return all(run.curve is not None for run in runs)


def _lowest_curves(runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    ends = [run.c for run in runs]
    flops = np.geomspace(min(ends), max(ends), _POINTS)
    losses = np.full((len(runs), _POINTS), np.inf)
    for row, run in zip(losses, runs, strict=True):
        assert run.curve is not None
        tokens, loss = run.curve
        along = np.log(tokens * (run.c / run.d))
        row[:] = np.interp(np.log(flops), along, loss, left=np.inf, right=np.inf)
        # The last point of a curve may be a step short of the end, where rounding matters.
        row[np.isclose(flops, run.c, rtol=1e-9)] = loss[-1]
    found = np.isfinite(losses).any(0)
    return flops[found], losses[:, found].argmin(0)


def _unbeaten(runs: Sequence[Run]) -> list[int]:
    """The best run of each budget that no run of a smaller budget beats."""
    _, _, _, loss = columns(runs)
    kept: list[int] = []
    for group in budgets(runs):
        best = min(group, key=lambda number: loss[number])
        if not kept or loss[best] < loss[kept[-1]]:
            kept.append(best)
    return kept
