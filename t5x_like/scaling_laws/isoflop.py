"""Approach 2: a parabola through the losses of networks of equal FLOPs."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from t5x_like.scaling_laws.frontier import Frontier, regress
from t5x_like.scaling_laws.law import SIX_N_D, Compute, Law, Vector
from t5x_like.scaling_laws.runs import Run, columns

_SAME = 1.1  # runs whose FLOPs differ by less are of one budget
LEAST_SIZES = 3  # of a budget, for a parabola


@dataclasses.dataclass(frozen=True)
class Profile:
    """The runs of one budget, and the parabola of their loss in log N.

    Attributes:
        numbers: of the runs.
        flops: of a run, on average.
        n, d: parameters and tokens at the minimum; None where the parabola has none.
        loss: at the minimum.
        sizes: the least and most parameters of the runs.
        best_at_edge: the run of the least loss is the smallest or the largest.
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


def budgets(runs: Sequence[Run]) -> list[list[int]]:
    """The numbers of the runs of each budget, the smallest first; a run may be alone in one."""
    _, _, c, _ = columns(runs)
    groups: list[list[int]] = []
    for number in map(int, np.argsort(c, kind="stable")):
        if groups and c[number] < _SAME * c[groups[-1][0]]:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def profiles(runs: Sequence[Run], loss: Vector | None = None) -> list[Profile]:
    """The parabolas of all budgets with 3 sizes or more (Hoffmann et al. 2022, section 3.2).

    Args:
        loss: of the runs, in place of their own.
    """
    n, d, c, own = columns(runs)
    loss = own if loss is None else loss
    groups = [group for group in budgets(runs) if len(set(n[group])) >= LEAST_SIZES]
    return [_profile(tuple(group), n[group], d[group], c[group], loss[group]) for group in groups]


def _profile(numbers: tuple[int, ...], n: Vector, d: Vector, c: Vector, loss: Vector) -> Profile:
    at_n, least = _minimum(np.log(n), loss)
    at_d, _ = _minimum(np.log(d), loss)
    both = at_n is not None and at_d is not None
    return Profile(
        numbers=numbers,
        flops=float(np.exp(np.log(c).mean())),
        n=at_n if both else None,
        d=at_d if both else None,
        loss=least if both else None,
        sizes=(float(n.min()), float(n.max())),
        best_at_edge=n[loss.argmin()] in (n.min(), n.max()),
    )


def _minimum(x: Vector, loss: Vector) -> tuple[float | None, float | None]:
    """Where the least-squares parabola in x = log(size) is least: the size and the loss."""
    middle = x.mean()
    square, slope, level = np.polyfit(x - middle, loss, 2)
    if square <= 0 or abs(slope / square) > 100:  # e^50 away is no minimum
        return None, None
    return float(np.exp(middle - slope / (2 * square))), float(level - slope**2 / (4 * square))


def fit(found: Sequence[Profile]) -> Frontier | None:
    """The frontier through the minima that lie within the sizes of their budget; None for one."""
    kept = [one for one in found if one.inside]
    values = np.array([(one.flops, one.n, one.d) for one in kept], float).reshape(-1, 3)
    return regress(*values.T)


def resample(
    runs: Sequence[Run], found: Sequence[Profile], rng: np.random.Generator
) -> Vector | None:
    """Losses of the runs as another sample might have them: the parabolas and drawn residuals.

    A budget has few sizes, so residuals of all budgets are drawn, and not runs. They are scaled by
    sqrt(R / (R - 3)) for the three coefficients of a parabola through R runs.

    Returns:
        None where every budget has three runs: parabolas through three points leave no residual.
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


def bias(law: Law, n: Vector, d: Vector, compute: Compute = SIX_N_D) -> float:
    """The relative error of a parabola's minimum for runs without noise, where a law holds.

    A parabola is a Taylor series to second order, so that it is off where the grid is wide or not
    around the optimum, unless alpha equals beta (Czech et al. 2026, arXiv:2603.22339).

    Args:
        n, d: the parameters and tokens of the runs of one budget.
        compute: the relation of their FLOPs to both.
    """
    at, _ = _minimum(np.log(n), law.loss(n, d))
    optimum, _ = law.optimum(float(np.exp(np.log(compute.flops(n, d)).mean())), compute)
    return np.nan if at is None else at / optimum - 1


def width(sizes: tuple[float, float] | Float[np.ndarray, " 2"]) -> float:
    """How far a grid reaches from its middle to either side, as a factor: 4 for x/÷ 4."""
    return float(np.sqrt(sizes[1] / sizes[0]))
