"""Fit all laws to runs, with intervals: the contents of the JSON file of `scaling fit`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.research.scaling_laws import approaches, bootstrap, cautions
from t5x_like.research.scaling_laws.approaches import Frontier
from t5x_like.research.scaling_laws.bootstrap import FittedNumbers
from t5x_like.research.scaling_laws.law import (
    KAPLAN_A,
    Law,
    TrainingCompute,
    fit_compute,
    fit_kaplan,
)
from t5x_like.research.scaling_laws.runs import TrainedRun, columns

Analysis = dict[str, Any]
APPROACHES = ("approach_1", "approach_2", "approach_3")


def analyse(runs: Sequence[TrainedRun], *, times: int = 200, seed: int = 0) -> Analysis:
    """Fit the three approaches, variable projection and Kaplan's form, with and without embeddings.

    Args:
        runs: checked by `runs.check`.
        times: bootstrap resamples of each fit; 0 for no intervals.
        seed: the seed of the bootstrap.

    Returns:
        The analysis, with the keys of docs/scaling.md.
    """
    _, _, c, _ = columns(runs)
    analysis = {
        "runs": len(runs),
        "budgets": len(approaches.profiles(runs)),
        "flops": [float(c.min()), float(c.max())],
        **_fits(runs, times=times, seed=seed),
        "without_embeddings": None,
    }
    analysis["warnings"] = cautions.of_runs(runs) + cautions.of_fits(runs, analysis)
    sizes = [run.n_without_embeddings for run in runs]
    if None not in sizes:
        pairs = zip(runs, sizes, strict=True)
        bare = [dataclasses.replace(run, n=n) for run, n in pairs if n is not None]
        analysis["without_embeddings"] = _fits(bare, times=times, seed=seed)
        others = cautions.of_compute(analysis["without_embeddings"])
        analysis["warnings"] += [f"without embeddings, {caution}" for caution in others]
    return analysis


def held_out(runs: Sequence[TrainedRun], analysis: Analysis) -> list[dict[str, Any]]:
    """Predict the loss of held-out runs with approach 3 and variable projection."""
    laws = {name: law_of(analysis[name]) for name in ("approach_3", "variable_projection")}
    return [
        {"run": run.name, "N": run.n, "D": run.d, "C": run.c, "loss": run.loss}
        | {name: float(law.loss(run.n, run.d)) for name, law in laws.items()}
        for run in runs
    ]


def law_of(constants: Mapping[str, Any]) -> Law:
    """Return the law of `approach_3` or `variable_projection` in an analysis.

    Raises:
        KeyError, TypeError, ValueError: a constant is missing, or not a number.
    """
    return Law(**{field.name: float(constants[field.name]) for field in dataclasses.fields(Law)})


def _fits(runs: Sequence[TrainedRun], *, times: int, seed: int) -> Analysis:
    n, d, c, loss = columns(runs)
    compute = fit_compute(n, d, c)
    law = approaches.fit_law(n, d, loss)
    projected = approaches.fit_by_projection(n, d, loss)

    # The intervals reflect noise in the loss; `compute`, which has no noise, is not refitted.
    def refit(rng: np.random.Generator) -> FittedNumbers:
        drawn = _draw(rng, len(runs))
        start = approaches.start_at(law)
        return _of_law(approaches.fit_law(n[drawn], d[drawn], loss[drawn], starts=start), compute)

    def reproject(rng: np.random.Generator) -> FittedNumbers:
        drawn = _draw(rng, len(runs))
        again = approaches.fit_by_projection(n[drawn], d[drawn], loss[drawn], start=projected)
        return _of_law(again, compute)

    def intervals(statistics: Callable[..., FittedNumbers | None]) -> dict[str, list[float]] | None:
        return bootstrap.intervals(statistics, times=times, seed=seed)

    fits: Analysis = {
        "compute": dataclasses.asdict(compute),
        "approach_1": _approach_1(runs, intervals),
        "approach_2": _approach_2(runs, law, compute, intervals),
        "approach_3": _of_law(law, compute) | {"intervals": intervals(refit)},
        "variable_projection": _of_law(projected, compute) | {"intervals": intervals(reproject)},
    }
    return fits | {"kaplan": _kaplan(runs, fits, compute)}


def _draw(rng: np.random.Generator, number: int) -> np.ndarray:
    return rng.integers(number, size=number)


def _of_law(law: Law, compute: TrainingCompute) -> dict[str, float]:
    a, b = law.exponents(compute)
    exponents = {"a": law.a, "b": law.b, "a_of_runs": a, "b_of_runs": b}
    return dataclasses.asdict(law) | exponents


def _of_frontier(frontier: Frontier) -> dict[str, float]:
    names = ("a", "b", "n_scale", "d_scale")
    return {name: getattr(frontier, name) for name in names}


def _approach_1(
    runs: Sequence[TrainedRun], intervals: Callable[..., dict[str, list[float]] | None]
) -> Analysis | None:
    runs = approaches.smoothed(runs)
    frontier = approaches.fit_envelope(runs)
    if frontier is None:
        return None

    def refit(rng: np.random.Generator) -> FittedNumbers | None:
        again = approaches.fit_envelope([runs[number] for number in _draw(rng, len(runs))])
        return None if again is None else _of_frontier(again)

    curves = approaches.has_curves(runs)
    points = len(frontier.flops)
    envelope = {"curves": curves, "points": points, "intervals": intervals(refit)}
    return _of_frontier(frontier) | envelope


def _approach_2(
    runs: Sequence[TrainedRun],
    law: Law,
    compute: TrainingCompute,
    intervals: Callable[..., dict[str, list[float]] | None],
) -> Analysis | None:
    profiles = approaches.profiles(runs)
    frontier = approaches.fit_profiles(profiles)
    if frontier is None:
        return None

    def refit(rng: np.random.Generator) -> FittedNumbers | None:
        loss = approaches.resample_profiles(runs, profiles, rng)
        again = None if loss is None else approaches.fit_profiles(approaches.profiles(runs, loss))
        return None if again is None else _of_frontier(again)

    n, d, _, _ = columns(runs)
    minima = []
    for profile in profiles:
        group = list(profile.numbers)
        minima.append(
            {
                "C": profile.flops,
                "N": profile.n,
                "D": profile.d,
                "loss": profile.loss,
                "used": profile.inside,
                "bias_of_N": approaches.profile_bias(law, n[group], d[group], compute),
            }
        )
    return _of_frontier(frontier) | {"minima": minima, "intervals": intervals(refit)}


def _kaplan(runs: Sequence[TrainedRun], fits: Analysis, compute: TrainingCompute) -> Analysis:
    """Fit Kaplan's form of the loss, and test whether the intervals exclude its published exponent.

    Approach 3 has two exponents, for C = 6 N D and for the runs' C, and an answer for each.
    """
    n, d, _, loss = columns(runs)
    law = fit_kaplan(n, d, loss)
    asked = {name: (name, "a") for name in APPROACHES if fits[name] is not None}
    asked["approach_3_of_runs"] = ("approach_3", "a_of_runs")
    excludes = {
        key: bootstrap.excluded(KAPLAN_A, (fits[name]["intervals"] or {}).get(exponent))
        for key, (name, exponent) in asked.items()
    }
    return dataclasses.asdict(law) | {
        "a": law.a,
        "a_of_runs": law.exponent(compute),
        "published_a": KAPLAN_A,
        "published_a_excluded": excludes,
    }


def text(analysis: Analysis) -> str:
    """Format an analysis as text."""
    low, high = analysis["flops"]
    lines = [
        f"{analysis['runs']} runs of {low:.3g} to {high:.3g} FLOPs, {analysis['budgets']} budgets",
        *_table(analysis),
    ]
    if analysis["without_embeddings"] is not None:
        lines += ["", "N without embeddings", *_table(analysis["without_embeddings"])]
    for prediction in analysis.get("held_out", ()):
        off = ", ".join(
            f"{title} {prediction[name]:.4f} ({prediction[name] - prediction['loss']:+.4f})"
            for name, title in list(_TITLES.items())[2:]
        )
        lines.append(
            f"kept apart, {prediction['run']}: loss {prediction['loss']:.4f}; predicted by {off}"
        )
    lines += [f"warning: {warning}" for warning in analysis["warnings"]]
    return "\n".join(lines)


_ASKED = {
    "approach_1": "1",
    "approach_2": "2",
    "approach_3": "3 for 6 N D",
    "approach_3_of_runs": "3 for the runs' C",
}
_TITLES = {
    "approach_1": "1, lowest curves",
    "approach_2": "2, equal FLOPs",
    "approach_3": "3, parametric",
    "variable_projection": "3, least squares",
}


def _table(analysis: Analysis) -> list[str]:
    lines = [f"{'approach':<20}{'N_opt ~ C^a':<26}D_opt ~ C^b"]
    for name, title in _TITLES.items():
        fit = analysis[name]
        cells = ("none", "") if fit is None else (_cell(fit, "a"), _cell(fit, "b"))
        lines.append(f"  {title:<18}{cells[0]:<26}{cells[1]}".rstrip())
    compute, form = analysis["compute"], analysis["kaplan"]
    lines.append(
        f"  3 is for C = 6 N D; for the runs' C = {compute['k']:.3g} N^{compute['s']:.3f} D:"
    )
    for name, title in list(_TITLES.items())[2:]:
        cells = _cell(analysis[name], "a_of_runs"), _cell(analysis[name], "b_of_runs")
        lines.append(f"  {title:<18}{cells[0]:<26}{cells[1]}")
    of_two = (analysis["approach_3"], analysis["variable_projection"])
    for name, fit in zip(("3, parametric", "3, least squares"), of_two, strict=True):
        lines.append(
            f"  {name}: L = {fit['E']:.4g} + {fit['A']:.4g} / N^{fit['alpha']:.4f} "
            f"+ {fit['B']:.4g} / D^{fit['beta']:.4f}"
        )
    lines.append(
        f"  Kaplan's form: alpha_N {form['alpha_n']:.4f}, alpha_D {form['alpha_d']:.4f}, "
        f"a {form['a']:.3f} ({form['a_of_runs']:.3f} for the runs' C), "
        f"error {form['error']:.2%} of the loss"
    )
    answers = {True: "yes", False: "no", None: "no interval"}
    excludes = (
        f"{_ASKED[name]} {answers[value]}" for name, value in form["published_a_excluded"].items()
    )
    lines.append(
        f"  Kaplan's a = {form['published_a']} excluded by approach: {', '.join(excludes)}"
    )
    return lines


def _cell(fit: Analysis, name: str) -> str:
    interval = (fit["intervals"] or {}).get(name)
    bounds = "" if interval is None else f" ({interval[0]:.3f}, {interval[1]:.3f})"
    return f"{fit[name]:.3f}{bounds}"
