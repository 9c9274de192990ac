"""Numbers by the number of examples in a prompt: their names, a table, and a figure.

Brown et al. 2020, figures 1.2 and 3.10.
"""

import dataclasses
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from t5x_like.experiment.reporting import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_NAME = re.compile(r"(?P<measure>.+)/(?P<shots>\d+)_shots/(?P<number>.+)")
_BASES = ("constant", "chance")  # kinds of base rates, the beginnings of their names
_STYLES = dict(zip(_BASES, ("--", ":"), strict=True))


def name(number: str, *, shots: int) -> str:
    """Return the name of a number that is measured with so many examples."""
    return f"{shots}_shots/{number}"


def is_on_curve(number: str) -> bool:
    """Return whether TASK/MEASURE/NAME is a number by the number of examples (`name`)."""
    return bool(_NAME.fullmatch(number))


def without_shots(number: str) -> str:
    """Return TASK/MEASURE/NAME for a number on a curve; any other name is returned as it is."""
    match = _NAME.fullmatch(number)
    return f"{match['measure']}/{match['number']}" if match else number


def is_base(number: str) -> bool:
    """Return whether a number is the same for all numbers of examples: a base rate, or a count."""
    return number == "examples" or number.startswith(tuple(f"{kind}_" for kind in _BASES))


@dataclasses.dataclass
class ShotCurve:
    """The numbers of a measure on a task, by the number of examples in a prompt.

    Attributes:
        numbers: {number of examples: {name: number}}.
        base: {name: base rate}, such as `constant_accuracy` and `chance_accuracy`.
    """

    numbers: dict[int, dict[str, float]] = dataclasses.field(default_factory=dict)
    base: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the numbers."""
        return list(dict.fromkeys(name for numbers in self.numbers.values() for name in numbers))

    def base_of(self, number: str, *, kind: str) -> float | None:
        """Return the base rate of a number, or None.

        The base rate of `accuracy_per_token` is the base rate of `accuracy`.

        Args:
            number: the name of the number.
            kind: "constant", of always the same answer, or "chance", of random choices.
        """
        words = number.split("_")
        ends = ("_".join(words[:size]) for size in range(len(words), 0, -1))
        return next(
            (self.base[f"{kind}_{end}"] for end in ends if f"{kind}_{end}" in self.base), None
        )


def of_results(results: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, str], ShotCurve]:
    """Return {(task, measure): its curve} of all measures with several numbers of examples.

    Args:
        results: {task: {MEASURE/NAME: number}}, where NAME is made by `name`.
    """
    curves: dict[tuple[str, str], ShotCurve] = {}
    for task, numbers in results.items():
        for key, value in numbers.items():
            if match := _NAME.fullmatch(key):
                curve = curves.setdefault((task, match["measure"]), ShotCurve())
                curve.numbers.setdefault(int(match["shots"]), {})[match["number"]] = value
    for (task, measure), curve in curves.items():
        of_measure = {
            key.removeprefix(f"{measure}/"): value for key, value in results[task].items()
        }
        curve.base = {key: value for key, value in of_measure.items() if is_base(key)}
    return curves


def others(results: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the results that are not on a curve."""
    return {
        task: {key: value for key, value in numbers.items() if not is_on_curve(key)}
        for task, numbers in results.items()
    }


def table(curves: Mapping[tuple[str, str], ShotCurve]) -> Iterator[str]:
    """Yield the lines of a table for each curve: a row for each number of examples, and bases."""
    for (task, measure), curve in curves.items():
        names = curve.names
        rows = [["shots", *names]]
        for shots, numbers in sorted(curve.numbers.items()):
            rows.append([str(shots), *(_shown(numbers.get(name)) for name in names)])
        for kind in _BASES:
            bases = [curve.base_of(name, kind=kind) for name in names]
            if any(base is not None for base in bases):
                rows.append([kind, *map(_shown, bases)])
        yield f"{task}, {measure} by the number of examples in a prompt:"
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for first, *cells in rows:
            padded = (cell.ljust(width) for cell, width in zip(cells, widths[1:], strict=True))
            yield f"  {first:>{widths[0]}}  {'  '.join(padded)}".rstrip()


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    if not isinstance(value, Estimate):
        return f"{value:.4f}"
    low, high = value.interval
    return f"{value:.4f} [{low:.4f}, {high:.4f}]"


def plot(curves: Mapping[tuple[str, str], ShotCurve]) -> "Figure":
    """Plot a panel for each number that has an interval.

    A line is a task, with its 95% interval; base rates are dashed (the best constant answer) or
    dotted (random choices). Numbers of examples are plotted at equal distances.
    """
    from matplotlib.figure import Figure  # takes a second that errors need not wait for

    rows = [numbers for curve in curves.values() for numbers in curve.numbers.values()]
    names = [
        key for numbers in rows for key, value in numbers.items() if isinstance(value, Estimate)
    ]
    names = list(dict.fromkeys(names))
    shots = sorted({count for curve in curves.values() for count in curve.numbers})
    figure = Figure(figsize=(4.5 * len(names), 4), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for panel, number in zip(panels, names, strict=True):
        for index, (label, curve) in enumerate(curves.items()):
            _plot(panel, curve, number, shots, color=f"C{index}", label=", ".join(label))
        panel.set(title=number, xlabel="examples in the prompt", ylim=(0, None))
        panel.set_xticks(range(len(shots)), labels=[*map(str, shots)])
        panel.legend(fontsize="small")
    return figure


def draw(curves: Mapping[tuple[str, str], ShotCurve]) -> bytes:
    """Return the content of a PNG file of `plot`."""
    file = io.BytesIO()
    plot(curves).savefig(file, format="png", dpi=120)
    return file.getvalue()


def _plot(
    panel: Any, curve: ShotCurve, number: str, shots: Sequence[int], *, color: str, label: str
) -> None:
    positions = [at for at, count in enumerate(shots) if number in curve.numbers.get(count, {})]
    if not positions:
        return
    values = [curve.numbers[shots[at]][number] for at in positions]
    panel.plot(positions, values, ".-", color=color, label=label)
    ends = zip(
        *(estimate.interval for estimate in values if isinstance(estimate, Estimate)), strict=True
    )
    panel.fill_between(positions, *ends, color=color, alpha=0.2, linewidth=0)
    for kind, style in _STYLES.items():
        if (base := curve.base_of(number, kind=kind)) is not None:
            panel.axhline(base, linestyle=style, linewidth=1, color=color)
