"""Figures of the three approaches, as PNG files."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.research.scaling_laws import approaches
from t5x_like.research.scaling_laws.analysis import law_of
from t5x_like.research.scaling_laws.law import TrainingCompute
from t5x_like.research.scaling_laws.runs import TrainedRun, columns

FILES = ("approach_1.png", "approach_2.png", "approach_3.png")


def draw(
    runs: Sequence[TrainedRun], analysis: Mapping[str, Any], folder: pathlib.Path
) -> list[pathlib.Path]:
    """Draw the three figures into a folder, which is made if it does not exist.

    Args:
        runs: the runs.
        analysis: the result of `analysis.analyse`.
        folder: the folder to write into.
    """
    import matplotlib.figure  # takes a second that errors need not wait for

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, plot in zip(FILES, (_curves, _profiles, _contours), strict=True):
        figure = matplotlib.figure.Figure(figsize=(11, 4.5), layout="constrained")
        plot(runs, analysis, *figure.subplots(1, 2))
        figure.savefig(folder / name, dpi=120)
        paths.append(folder / name)
    return paths


def _curves(runs: Sequence[TrainedRun], analysis: Mapping[str, Any], left: Any, right: Any) -> None:
    """Plot loss against FLOPs, and the sizes of the lowest runs."""
    runs = approaches.smoothed(runs)
    n, _, c, loss = columns(runs)
    for run in runs:
        if run.curve is not None:
            left.plot(run.curve[0] * run.c / run.d, run.curve[1], color="0.7", linewidth=0.7)
    dots = left.scatter(c, loss, c=np.log10(n), s=14, zorder=3)
    left.figure.colorbar(dots, ax=left, label="log10 N")
    left.set(xscale="log", xlabel="FLOPs", ylabel="loss (nats)", title="runs")
    frontier = approaches.fit_envelope(runs)
    if frontier is not None:
        right.plot(frontier.flops, frontier.parameters, ".", markersize=3, label="lowest")
        _line(right, analysis["approach_1"], frontier.flops)
    right.set(xscale="log", yscale="log", xlabel="FLOPs", ylabel="N", title="approach 1")


def _line(axes: Any, approach: Mapping[str, Any], flops: np.ndarray) -> None:
    ends = np.array([flops.min(), flops.max()])
    label = f"C^{approach['a']:.3f}"
    axes.plot(ends, approach["n_scale"] * ends ** approach["a"], "k-", linewidth=1, label=label)
    axes.legend()


def _profiles(
    runs: Sequence[TrainedRun], analysis: Mapping[str, Any], left: Any, right: Any
) -> None:
    """Plot loss against size for each budget with its parabola, and the minima."""
    n, _, _, loss = columns(runs)
    profiles = approaches.profiles(runs)
    for profile in profiles:
        group = list(profile.numbers)
        [points] = left.plot(n[group], loss[group], "o", markersize=4, label=f"{profile.flops:.2g}")
        middle = np.log(n[group]).mean()
        sizes = np.geomspace(*profile.sizes, 100)
        parabola = np.polyfit(np.log(n[group]) - middle, loss[group], 2)
        heights = np.polyval(parabola, np.log(sizes) - middle)
        left.plot(sizes, heights, color=points.get_color(), linewidth=1)
        if profile.n is not None and profile.inside:
            right.plot(profile.flops, profile.n, "o", color=points.get_color())
    left.set(xscale="log", xlabel="N", ylabel="loss (nats)", title="equal FLOPs")
    right.set(xscale="log", yscale="log", xlabel="FLOPs", ylabel="N", title="approach 2")
    if profiles:
        left.legend(title="FLOPs", fontsize=7)
    if analysis["approach_2"] is not None:
        _line(right, analysis["approach_2"], np.array([profile.flops for profile in profiles]))


def _contours(
    runs: Sequence[TrainedRun], analysis: Mapping[str, Any], left: Any, right: Any
) -> None:
    """Plot the fitted loss over FLOPs and sizes with its optimum, and fitted against measured."""
    n, d, c, loss = columns(runs)
    law = law_of(analysis["approach_3"])
    flops, sizes = np.geomspace(c.min(), c.max(), 80), np.geomspace(n.min(), n.max(), 80)
    compute = TrainingCompute(**analysis["compute"])
    x, y = np.meshgrid(flops, sizes)
    shades = left.contour(x, y, law.loss(y, compute.tokens(x, y)), levels=15, linewidths=0.8)
    left.figure.colorbar(shades, ax=left, label="loss (nats)")
    left.scatter(c, n, s=8, color="0.4")
    best = [law.optimum(budget, compute)[0] for budget in flops]
    left.plot(flops, best, "k--", linewidth=1, label=f"C^{law.exponents(compute)[0]:.3f}")
    left.set(xscale="log", yscale="log", xlabel="FLOPs", ylabel="N", title="approach 3")
    left.set_ylim(n.min() / 1.2, n.max() * 1.2)
    left.legend()
    fitted = law.loss(n, d)
    right.scatter(loss, fitted, s=12)
    ends = [min(loss.min(), fitted.min()), max(loss.max(), fitted.max())]
    right.plot(ends, ends, "k-", linewidth=1)
    right.set(xlabel="measured loss (nats)", ylabel="fitted loss (nats)", title="fit")
