"""Figures as PNG files: layer statistics by layer, and the cosines of a word's neighbours."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from t5x_like.research.inspection.layer_statistics import LayerStatistics
from t5x_like.research.inspection.word_neighbours import Neighbour, Occurrence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = {
    "l2": "L2 distance between input and output",
    "degrees": "angle between input and output (degrees)",
    "diagonal": "attention on the diagonal",
    "vertical": "attention in vertical stripes",
}
_CHARACTERS = 40  # that are shown before and after the word


def draw_layers(models: Mapping[str, LayerStatistics]) -> bytes:
    """Draw the statistics of one or more models, and return the content of a PNG file.

    In the panels of attention a dot is a head, a line the mean of the heads of a layer, and a
    dashed line the share of uniform attention.

    Args:
        models: {name: its statistics}.
    """
    import matplotlib.figure  # takes a second that errors need not wait for

    figure = matplotlib.figure.Figure(figsize=(10, 7), layout="constrained")
    panels = dict(zip(_TITLES, figure.subplots(2, 2).flat, strict=True))
    sides = [
        (name, statistics, side)
        for name, statistics in models.items()
        for side in statistics.tokens
    ]
    for number, (name, statistics, side) in enumerate(sides):
        colour, label = f"C{number}", f"{name}, {side}"
        if change := statistics.layers.get(side):
            panels["l2"].plot(change.l2, ".-", color=colour, label=label)
            panels["degrees"].plot(change.degrees, ".-", color=colour, label=label)
        if shares := statistics.attention.get(side):
            for pattern, uniform in zip(("diagonal", "vertical"), shares.uniform, strict=True):
                heads = getattr(shares, pattern)
                layers = np.repeat(np.arange(len(heads)), heads.shape[1])
                panels[pattern].plot(layers, heads.ravel(), ".", color=colour, alpha=0.4)
                panels[pattern].plot(heads.mean(axis=1), "-", color=colour, label=label)
                panels[pattern].axhline(uniform, linestyle="--", linewidth=1, color=colour)
    for name, axes in panels.items():
        axes.set(title=_TITLES[name], xlabel="layer", ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
    return _png(figure)


def draw_neighbours(query: Occurrence, neighbours: Sequence[Neighbour], *, top: int) -> bytes:
    """Draw a bar for each of the nearest neighbours, and return the content of a PNG file.

    A dashed line is the mean of all cosines.

    Args:
        query: the word whose neighbours these are.
        neighbours: all neighbours, the most similar first.
        top: the number of bars at most.
    """
    import matplotlib.figure  # takes a second that errors need not wait for

    nearest = neighbours[:top]
    size = (10, 1.5 + 0.3 * len(nearest))
    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    bars = range(len(nearest))
    axes.barh(bars, [neighbour.cosine for neighbour in nearest])
    # A text may have dollar signs, which else would begin a formula.
    labels = [_short(neighbour.occurrence) for neighbour in nearest]
    axes.set_yticks(bars, labels, parse_math=False, fontsize="small")
    axes.invert_yaxis()
    mean = sum(neighbour.cosine for neighbour in neighbours) / len(neighbours)
    axes.axvline(mean, linestyle="--", color="black", label=f"mean of all {len(neighbours)}")
    axes.set_xlabel("cosine")
    axes.set_title(_short(query), parse_math=False, fontsize="medium")
    figure.legend(loc="outside lower left", fontsize="small")
    return _png(figure)


def _short(occurrence: Occurrence) -> str:
    """Return the word in brackets, with the text near it."""
    start = max(0, occurrence.start - _CHARACTERS)
    end = occurrence.end + _CHARACTERS
    near = Occurrence(
        where=occurrence.where,
        text=occurrence.text[start:end],
        start=occurrence.start - start,
        end=occurrence.end - start,
    )
    before, after = start > 0, end < len(occurrence.text)
    return "\u2026" * before + near.marked() + "\u2026" * after


def _png(figure: "Figure") -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()
