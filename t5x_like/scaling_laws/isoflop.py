"""Approach 2: a parabola through the losses of networks of equal FLOPs."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from t5x_like.scaling_laws.frontier import Frontier, regress
from t5x_like.scaling_laws.law import SIX_N_D, Law, TrainingCompute, Vector
from t5x_like.scaling_laws.runs import TrainedRun, columns

_SAME = 1.1  # runs whose FLOPs differ by a smaller factor share a budget
LEAST_SIZES = 3  # minimum sizes of a budget for a parabola


@dataclasses.dataclass(frozen=True)
class IsoFlopProfile:
    """The runs of one budget, and the parabola of their loss in log N.

    Attributes:
        numbers: the indices of the runs.
        flops: the mean FLOPs of a run.
        n, d: parameters and tokens at the minimum; None if the parabola has no minimum.
        loss: the loss at the minimum.
        sizes: minimum and maximum parameters of the runs.
        best_at_edge: whether the run with the least loss is the smallest or the largest.
    """

    numbers: tuple[int, ...]
    flops: float
    n: float | None
    d: float | None
    loss: float | None
    sizes: tuple[float, float]
    best_at_edge: bool

    @property
    def inside(self) -> bool:
        """Whether the minimum lies within the sizes of the runs."""
        return self.n is not None and self.sizes[0] <= self.n <= self.sizes[1]


def budgets(runs: Sequence[TrainedRun]) -> list[list[int]]:
    """Group the indices of runs by budget, the smallest first; a group may have a single run."""
    _, _, c, _ = columns(runs)
    groups: list[list[int]] = []
    for number in map(int, np.argsort(c, kind="stable")):
        if groups and c[number] < _SAME * c[groups[-1][0]]:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def profiles(runs: Sequence[TrainedRun], loss: Vector | None = None) -> list[IsoFlopProfile]:
    """Fit the parabolas of all budgets with 3 sizes or more (Hoffmann et al. 2022, section 3.2).

    Args:
        runs: the runs.
        loss: losses to use instead of the runs' losses.
    """
    n, d, c, own = columns(runs)
    loss = own if loss is None else loss
    groups = [group for group in budgets(runs) if len(set(n[group])) >= LEAST_SIZES]
    return [_profile(tuple(group), n[group], d[group], c[group], loss[group]) for group in groups]


def _profile(
    numbers: tuple[int, ...], n: Vector, d: Vector, c: Vector, loss: Vector
) -> IsoFlopProfile:
    at_n, least = _minimum(np.log(n), loss)
    at_d, _ = _minimum(np.log(d), loss)
    both = at_n is not None and at_d is not None
    return IsoFlopProfile(
        numbers=numbers,
        flops=float(np.exp(np.log(c).mean())),
        n=at_n if both else None,
        d=at_d if both else None,
        loss=least if both else None,
        sizes=(float(n.min()), float(n.max())),
        best_at_edge=n[loss.argmin()] in (n.min(), n.max()),
    )


def _minimum(x: Vector, loss: Vector) -> tuple[float | None, float | None]:
    """Return the size and loss at the minimum of the least-squares parabola in x = log(size)."""
    middle = x.mean()
    square, slope, level = np.polyfit(x - middle, loss, 2)
    if square <= 0 or abs(slope / square) > 100:  # a minimum e^50 away is spurious
        return None, None
    return float(np.exp(middle - slope / (2 * square))), float(level - slope**2 / (4 * square))


def fit(found: Sequence[IsoFlopProfile]) -> Frontier | None:
    """Fit the frontier to the minima within the sizes of their budget; None for one budget."""
    kept = [one for one in found if one.inside]
    values = np.array([(one.flops, one.n, one.d) for one in kept], float).reshape(-1, 3)
    return regress(*values.T)


def resample(
    runs: Sequence[TrainedRun], found: Sequence[IsoFlopProfile], rng: np.random.Generator
) -> Vector | None:
    """Resample the losses of the runs: the parabolas plus drawn residuals.

    A budget has few sizes, so that residuals of all budgets are drawn rather than runs. They are
    scaled by sqrt(R / (R - 3)) for the three coefficients of a parabola through R runs.

    Returns:
        None if every budget has three runs, whose parabolas leave no residual.
    """
    n, _, _, loss = columns(runs)
    fitted, pool = loss.copy(), []
    for one in found:
        group = list(one.numbers)
        x = np.log(n[group])
        fitted[group] = np.polyval(np.polyfit(x - x.mean(), loss[group], 2), x - x.mean())
        if len(group) > LEAST_SIZES:
            scale = np.sqrt(len(group) / (len(group) - LEAST_SIZES))
            pool.append(scale * (loss[group] - fitted[group]))
    if not pool:
        return None
    return fitted + rng.choice(np.concatenate(pool), size=len(loss))


def bias(law: Law, n: Vector, d: Vector, compute: TrainingCompute = SIX_N_D) -> float:
    """Return the relative error of a parabola's minimum for noiseless runs that follow a law.

    A parabola is a Taylor series to second order, so that it is off if the grid is wide or not
    around the optimum, unless alpha equals beta (Czech et al. 2026, arXiv:2603.22339).

    Args:
        law: the law.
        n, d: the parameters and tokens of the runs of one budget.
        compute: the relation of FLOPs to parameters and tokens.
    """
    at, _ = _minimum(np.log(n), law.loss(n, d))
    optimum, _ = law.optimum(float(np.exp(np.log(compute.flops(n, d)).mean())), compute)
    return np.nan if at is None else at / optimum - 1


def width(sizes: tuple[float, float] | Float[np.ndarray, " 2"]) -> float:
    """Return the factor by which a grid extends from its middle to either side: 4 for x/÷ 4."""
    return float(np.sqrt(sizes[1] / sizes[0]))
