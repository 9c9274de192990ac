"""A figure of layer statistics: L2 distance, angle, and shares of attention, by layer."""

import io
from collections.abc import Mapping

import numpy as np

from t5x_like.research.inspection.layer_statistics import LayerStatistics

_TITLES = {
    "l2": "L2 distance between input and output",
    "degrees": "angle between input and output (degrees)",
    "diagonal": "attention on the diagonal",
    "vertical": "attention in vertical stripes",
}


def draw(models: Mapping[str, LayerStatistics]) -> bytes:
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
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()
