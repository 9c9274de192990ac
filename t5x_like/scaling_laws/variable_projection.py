"""Fit the parametric law by variable projection: a search over only the two exponents."""

import numpy as np
from scipy import optimize

from t5x_like.scaling_laws.law import Law, Vector

_EXPONENTS = np.geomspace(0.03, 2.0, 16)


def fit(n: Vector, d: Vector, loss: Vector, *, start: Law | None = None) -> Law:
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
        grid = [(alpha, beta) for alpha in _EXPONENTS for beta in _EXPONENTS]
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
