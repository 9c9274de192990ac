"""Approach 3: fit the parametric law to runs with Huber's loss.

Variable projection, a search over only the two exponents, gives the starts.
"""

import functools
import itertools
from collections.abc import Callable

import numpy as np
import threadpoolctl
from jaxtyping import Float
from scipy import optimize

from t5x_like.scaling_laws.law import Law, Vector

_PROJECTED_EXPONENTS = np.geomspace(0.03, 2.0, 16)


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
    found = optimize.minimize(
        lambda point: _project(np.exp(point), n, d, loss)[1],
        np.log(first),
        method="Nelder-Mead",
        options={"xatol": 1e-11, "fatol": 0.0, "maxiter": 2000, "maxfev": 4000},
    )
    alpha, beta = np.exp(found.x)
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
    """Return E, A and B for given exponents, and the norm of the error."""
    alpha, beta = exponents
    return optimize.nnls(np.stack([np.ones_like(n), n**-alpha, d**-beta], axis=1), loss)


DELTA = 1e-3  # the delta of Huber's loss, in log loss
_EXPONENTS = (0.0, 0.5, 1.0, 1.5, 2.0)
_SCALES = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0)
# (alpha, beta, log E, log A, log B): the grid of starts of Hoffmann et al. 2022, appendix D.
STARTS = tuple(
    itertools.product(_EXPONENTS, _EXPONENTS, (-1.0, -0.5, 0.0, 0.5, 1.0), _SCALES, _SCALES)
)


def objective(n: Vector, d: Vector, loss: Vector) -> Callable[[Vector], tuple[float, Vector]]:
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


def fit(n: Vector, d: Vector, loss: Vector, *, starts: Vector | None = None) -> Law:
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
    value = objective(n / np.exp(mean_n), d / np.exp(mean_d), loss)
    points = _best_starts(n, d, loss) if starts is None else np.array(starts, float)
    points[:, 3] -= points[:, 0] * mean_n
    points[:, 4] -= points[:, 1] * mean_d
    # The matrices of L-BFGS are tiny: BLAS threads would wait for each other for seconds.
    with _libraries().limit(limits=1):
        best = min((_minimize(value, point) for point in points), key=lambda found: found.fun)
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
    value = objective(n, d, loss)
    best: dict[tuple[float, float], tuple[float, tuple[float, ...]]] = {}
    for start in STARTS:
        found = value(np.array(start))[0], start
        best[start[:2]] = min(best.get(start[:2], found), found)
    return np.array([start for _, start in best.values()])


def start_at(law: Law) -> Float[np.ndarray, "1 5"]:
    """Return the parameters of a law as a start, to refit it to other runs."""
    return np.array([[law.alpha, law.beta, *np.log([max(law.E, 1e-9), law.A, law.B])]])


def _minimize(
    value: Callable[[Vector], tuple[float, Vector]], point: Vector
) -> optimize.OptimizeResult:
    options = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-13, "gtol": 1e-7}
    return optimize.minimize(value, point, jac=True, method="L-BFGS-B", options=options)
