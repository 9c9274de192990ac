"""The three approaches to the compute-optimal frontier (Hoffmann et al. 2022, section 3).

The frontier is two power laws of the budget, N_opt ~ C^a and D_opt ~ C^b. Approach 1 takes the
lower envelope of the training curves, approach 2 the minimum of a parabola through the losses of
networks of equal FLOPs, and approach 3 fits the parametric law with Huber's loss; variable
projection, a search over only the two exponents, gives the starts.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import threadpoolctl
from jaxtyping import Float
from scipy import optimize

from t5x_like.research.scaling_laws.law import SIX_N_D, Law, TrainingCompute, Vector
from t5x_like.research.scaling_laws.runs import TrainedRun, columns


@dataclasses.dataclass(frozen=True)
class Frontier:
    """N_opt = n_scale C^a and D_opt = d_scale C^b.

    Attributes:
        flops, parameters, tokens: the fitted points.
    """

    a: float
    b: float
    n_scale: float
    d_scale: float
    flops: Vector
    parameters: Vector
    tokens: Vector

    def optimum(self, flops: float) -> tuple[float, float]:
        """Return the parameters and tokens with the least loss for a budget of FLOPs."""
        return self.n_scale * flops**self.a, self.d_scale * flops**self.b


def regress(flops: Vector, parameters: Vector, tokens: Vector) -> Frontier | None:
    """Fit the frontier to points by least squares in logarithms; None for a single budget."""
    if len(flops) < 2 or np.ptp(np.log(flops)) < np.log(1.5):
        return None
    a, log_n = np.polyfit(np.log(flops), np.log(parameters), 1)
    b, log_d = np.polyfit(np.log(flops), np.log(tokens), 1)
    scales = {"n_scale": float(np.exp(log_n)), "d_scale": float(np.exp(log_d))}
    return Frontier(float(a), float(b), **scales, flops=flops, parameters=parameters, tokens=tokens)


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
    n, d, c, run_losses = columns(runs)
    loss = run_losses if loss is None else loss
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
        best_at_edge=n[np.argmin(loss)] in (n.min(), n.max()),
    )


def _minimum(x: Vector, loss: Vector) -> tuple[float | None, float | None]:
    """Return the size and loss at the minimum of the least-squares parabola in x = log(size)."""
    middle = x.mean()
    square, slope, level = np.polyfit(x - middle, loss, 2)
    if square <= 0 or abs(slope / square) > 100:  # a minimum e^50 away is spurious
        return None, None
    return float(np.exp(middle - slope / (2 * square))), float(level - slope**2 / (4 * square))


def fit_profiles(profiles: Sequence[IsoFlopProfile]) -> Frontier | None:
    """Fit the frontier to the minima within the sizes of their budget; None for one budget."""
    inside = [profile for profile in profiles if profile.inside]
    values = np.array([(profile.flops, profile.n, profile.d) for profile in inside], float).reshape(
        -1, 3
    )
    return regress(*values.T)


def resample_profiles(
    runs: Sequence[TrainedRun], profiles: Sequence[IsoFlopProfile], rng: np.random.Generator
) -> Vector | None:
    """Resample the losses of the runs: the parabolas plus drawn residuals.

    A budget has few sizes, so that residuals of all budgets are drawn rather than runs. They are
    scaled by sqrt(R / (R - 3)) for the three coefficients of a parabola through R runs.

    Returns:
        None if every budget has three runs, whose parabolas leave no residual.
    """
    n, _, _, loss = columns(runs)
    fitted, pool = loss.copy(), []
    for profile in profiles:
        group = list(profile.numbers)
        x = np.log(n[group])
        fitted[group] = np.polyval(np.polyfit(x - x.mean(), loss[group], 2), x - x.mean())
        if len(group) > LEAST_SIZES:
            scale = np.sqrt(len(group) / (len(group) - LEAST_SIZES))
            pool.append(scale * (loss[group] - fitted[group]))
    if not pool:
        return None
    return fitted + rng.choice(np.concatenate(pool), size=len(loss))


def profile_bias(law: Law, n: Vector, d: Vector, compute: TrainingCompute = SIX_N_D) -> float:
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


def profile_width(sizes: tuple[float, float] | Float[np.ndarray, " 2"]) -> float:
    """Return the factor by which a grid extends from its middle to either side: 4 for x/÷ 4."""
    return float(np.sqrt(sizes[1] / sizes[0]))


_POINTS = 1500
_WINDOW = 0.2  # standard deviation of the smoothing, in log FLOPs
_KEPT = 1000  # maximum points of a smoothed curve


def fit_envelope(runs: Sequence[TrainedRun]) -> Frontier | None:
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
    numbers = _unbeaten(runs)
    return regress(c[numbers], n[numbers], d[numbers])


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
    covered = np.isfinite(losses).any(0)
    return flops[covered], losses[:, covered].argmin(0)


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
    numbers = np.arange(len(x))[:: -math.ceil(len(x) / _KEPT)][::-1]  # keeps the run's end
    return tokens[numbers], np.array([_line_at(x[number], x, loss) for number in numbers])


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
    best_numbers: list[int] = []
    for group in budgets(runs):
        best = min(group, key=lambda number: loss[number])
        if not best_numbers or loss[best] < loss[best_numbers[-1]]:
            best_numbers.append(best)
    return best_numbers


_PROJECTED_EXPONENTS: list[float] = np.geomspace(0.03, 2.0, 16).tolist()


def fit_by_projection(n: Vector, d: Vector, loss: Vector, *, start: Law | None = None) -> Law:
    """Fit the law by least squares of the loss.

    Given the exponents, the law is linear in E, A and B, which non-negative least squares finds; so
    only alpha and beta are searched, and no starts have to be chosen (Czech et al. 2026,
    arXiv:2603.22339). Without noise it recovers the law; outliers weigh more than with Huber's
    loss.

    Args:
        n: parameters of each run.
        d: tokens.
        loss: nats.
        start: start of the search; None for the best point of a grid.
    """
    middle = np.exp(np.log(n).mean()), np.exp(np.log(d).mean())
    n, d = n / middle[0], d / middle[1]
    if start is None:
        grid = [(alpha, beta) for alpha in _PROJECTED_EXPONENTS for beta in _PROJECTED_EXPONENTS]
        first = min(grid, key=lambda point: _project(point, n, d, loss)[1])
    else:
        first = start.alpha, start.beta
    minimum = optimize.minimize(
        lambda point: _project(np.exp(point), n, d, loss)[1],
        np.log(first),
        method="Nelder-Mead",
        options={"xatol": 1e-11, "fatol": 0.0, "maxiter": 2000, "maxfev": 4000},
    )
    alpha, beta = np.exp(minimum.x)
    (level, of_n, of_d), _ = _project((alpha, beta), n, d, loss)
    return Law(
        E=float(level),
        A=float(of_n * middle[0] ** alpha),
        B=float(of_d * middle[1] ** beta),
        alpha=float(alpha),
        beta=float(beta),
    )


def _project(
    exponents: tuple[float, float] | Vector, n: Vector, d: Vector, loss: Vector
) -> tuple[Vector, float]:
    """Return E, A and B for given exponents, and the norm of the error.

    The norm is infinite for exponents whose powers are: a search among few runs may reach them.
    """
    alpha, beta = exponents
    with np.errstate(over="ignore"):
        powers = np.stack([np.ones_like(n), n**-alpha, d**-beta], axis=1)
    if not np.isfinite(powers).all():
        return np.zeros(powers.shape[1]), np.inf
    return optimize.nnls(powers, loss)


DELTA = 1e-3  # the delta of Huber's loss, in log loss
_EXPONENTS = (0.0, 0.5, 1.0, 1.5, 2.0)
_SCALES = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0)
# (alpha, beta, log E, log A, log B): the grid of starts of Hoffmann et al. 2022, appendix D.
STARTS = tuple(
    itertools.product(_EXPONENTS, _EXPONENTS, (-1.0, -0.5, 0.0, 0.5, 1.0), _SCALES, _SCALES)
)


def law_objective(n: Vector, d: Vector, loss: Vector) -> Callable[[Vector], tuple[float, Vector]]:
    """Return the objective: the sum of Huber losses of log L(N, D) - log L, and its gradient.

    It is a function of (alpha, beta, e, a, b), with E = exp(e), A = exp(a), B = exp(b), in units of
    DELTA^2. It is a sum, since the mean over hundreds of runs is so flat that an optimizer with its
    usual tolerances stops near its start (Besiroglu et al. 2024, arXiv:2404.10102).
    """
    log_n, log_d, log_loss = np.log(n), np.log(d), np.log(loss)

    def value(point: Vector) -> tuple[float, Vector]:
        alpha, beta, e, a, b = point
        terms = np.stack([np.full_like(log_n, e), a - alpha * log_n, b - beta * log_d])
        largest = terms.max(0)
        shares = np.exp(terms - largest)
        total = shares.sum(0)
        residual = (largest + np.log(total) - log_loss) / DELTA
        size = np.abs(residual)
        slope = np.clip(residual, -1, 1) / DELTA
        shares *= slope / total
        of_e, of_a, of_b = shares.sum(1)
        gradient = np.array([-shares[1] @ log_n, -shares[2] @ log_d, of_e, of_a, of_b])
        return float(np.where(size <= 1, residual**2 / 2, size - 0.5).sum()), gradient

    return value


def fit_law(n: Vector, d: Vector, loss: Vector, *, starts: Vector | None = None) -> Law:
    """Fit the law by minimizing the summed Huber loss (Hoffmann et al. 2022, section 3.3).

    For each pair of exponents in STARTS, L-BFGS runs to convergence from the best start with this
    pair. It uses log N and log D minus their means, which changes the path but not the minimum:
    without it, alpha and log A are almost collinear.

    Args:
        n: parameters of each run.
        d: tokens.
        loss: nats.
        starts: points (alpha, beta, log E, log A, log B) [S, 5] to start from instead.
    """
    mean_n, mean_d = np.log(n).mean(), np.log(d).mean()
    value = law_objective(n / np.exp(mean_n), d / np.exp(mean_d), loss)
    points = _best_starts(n, d, loss) if starts is None else np.array(starts, float)
    points[:, 3] -= points[:, 0] * mean_n
    points[:, 4] -= points[:, 1] * mean_d
    # The matrices of L-BFGS are tiny: BLAS threads would wait for each other for seconds.
    with _libraries().limit(limits=1):
        best = min((_minimize(value, point) for point in points), key=lambda minimum: minimum.fun)
    alpha, beta, e, a, b = best.x
    return Law(
        E=float(np.exp(e)),
        A=float(np.exp(a + alpha * mean_n)),
        B=float(np.exp(b + beta * mean_d)),
        alpha=float(alpha),
        beta=float(beta),
    )


@functools.cache
def _libraries() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


def _best_starts(n: Vector, d: Vector, loss: Vector) -> Float[np.ndarray, "25 5"]:
    """Return the start with the least objective for each pair of exponents in STARTS."""
    value = law_objective(n, d, loss)
    best: dict[tuple[float, float], tuple[float, tuple[float, ...]]] = {}
    for start in STARTS:
        candidate = value(np.array(start))[0], start
        best[start[:2]] = min(best.get(start[:2], candidate), candidate)
    return np.array([start for _, start in best.values()])


def start_at(law: Law) -> Float[np.ndarray, "1 5"]:
    """Return the parameters of a law as a start, to refit it to other runs."""
    return np.array([[law.alpha, law.beta, *np.log([max(law.E, 1e-9), law.A, law.B])]])


def _minimize(
    value: Callable[[Vector], tuple[float, Vector]], point: Vector
) -> optimize.OptimizeResult:
    options = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-13, "gtol": 1e-7}
    return optimize.minimize(value, point, jac=True, method="L-BFGS-B", options=options)
