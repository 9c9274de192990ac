"""The results of a study: a table in Markdown with the paper's numbers, a figure, JSON."""

import dataclasses
import math
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.experiment import command_line
from t5x_like.research.studies import verdicts
from t5x_like.research.studies.cells import Cell
from t5x_like.research.studies.definition import Curve, Study
from t5x_like.research.studies.verdicts import Check, Looks, Values, Verdict


def values_of(study: Study, cells: Sequence[Cell]) -> Values:
    """Return the numbers of the finished cells."""
    values: dict[str, dict[str, dict[int, float]]] = {
        arm: {measure: {} for measure in study.measures} for arm in study.arms
    }
    for cell in cells:
        for name, measure in study.measures.items():
            value = cell.runs[measure.run].value(measure.number)
            if value is not None:
                values[cell.arm][name][cell.seed] = measure.scale * value
    return values


def write(
    study: Study,
    name: str,
    cells: Sequence[Cell],
    folder: pathlib.Path,
    *,
    words: str = "",
    looks: Looks | None = None,
    cost: Mapping[str, Any] | None = None,
) -> pathlib.Path:
    """Write NAME.md, NAME.png and NAME.json into a folder, and return the path of NAME.md.

    Args:
        words: how the command names the study, if not by its name.
        looks: the looks at the study, if seeds are added until claims are decided.
        cost: the fields of an `estimate.StudyCost`.
    """
    values = values_of(study, cells)
    judged = verdicts.judge(study, values, looks=looks)
    folder.mkdir(parents=True, exist_ok=True)
    draw(study, values, folder / f"{name}.png")
    stored = _to_json(study, values, judged, looks) | ({"cost": cost} if cost else {})
    command_line.write_json(folder / f"{name}.json", stored)
    page = folder / f"{name}.md"
    page.write_text("\n".join(lines(study, words or name, values, judged, looks)) + "\n")
    return page


def lines(
    study: Study,
    name: str,
    values: Values,
    judged: Sequence[Verdict],
    looks: Looks | None = None,
) -> Iterator[str]:
    """Yield the lines of the page."""
    done = sum(any(measured.values()) for measured in values.values())
    yield f"# {study.title}"
    yield ""
    seeds = f"seeds {_listed(study.seeds)}"
    if looks is not None:
        seeds += f", and further seeds, to {looks.most}, for arms of claims that were not decided"
    yield f"{study.source}. `python -m t5x_like.study {name}`; {seeds}."
    if done < len(study.arms):
        yield f"{done} of {len(study.arms)} arms have a finished cell."
    yield from table(study, values)
    yield ""
    kind = "Mean ± standard deviation" if study.center == "mean" else "Median (least to most)"
    yield f"{kind} over seeds. ![Each seed of each arm]({name}.png)"
    if arm := best(study, values):
        yield ""
        yield _of_best(study, arm, values)
    checks = verdicts.checks(study, values)
    if checks:
        yield from table_of_checks(checks)
    if judged and all(check.passed for check in checks):
        yield from table_of_claims(judged, looks)
    elif judged:
        yield ""
        yield "No claim is judged: what has not learned says nothing about its settings."


def best(study: Study, values: Values) -> str:
    """Return the best finished arm by the center of `study.best_by`; "" if none is finished."""
    if not study.best_by:
        return ""
    best_values = {arm: measured[study.best_by].values() for arm, measured in values.items()}
    centers = {arm: _center(study, numbers) for arm, numbers in best_values.items() if numbers}
    choose = min if study.measures[study.best_by].smaller_is_better else max
    return choose(centers, key=centers.__getitem__, default="")


def _of_best(study: Study, arm: str, values: Values) -> str:
    numbers = ", ".join(
        f"{name} {_center(study, seed_values.values()):.2f}"
        for name, seed_values in values[arm].items()
        if seed_values
    )
    seeds = len(values[arm][study.best_by])
    return (
        f"Best by the {study.center} of `{study.best_by}`: **{arm}**, of {seeds} seeds with "
        f"{study.center}s {numbers}."
    )


def _center(study: Study, values: Collection[float]) -> float:
    return float(np.median(list(values)) if study.center == "median" else np.mean(list(values)))


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def table(study: Study, values: Values) -> Iterator[str]:
    """Yield the lines of the tables of arms and measures, one table for each part."""
    heads = []
    for name, measure in study.measures.items():
        heads += [name, *([f"{measure.in_paper} in the paper"] if measure.in_paper else [])]
    part = None
    for arm, settings in study.arms.items():
        if settings.part != part:
            part = settings.part
            yield from (["", f"**{part}**"] if part else [])
            yield ""
            yield f"| arm | {' | '.join(heads)} |"
            yield "|---" * (1 + len(heads)) + "|"
        row = []
        for name, measure in study.measures.items():
            row.append(_shown(study, values[arm][name].values()))
            if measure.in_paper:
                row.append(f"{settings.paper[name]:.2f}" if name in settings.paper else "")
        yield f"| {arm} | {' | '.join(row)} |"


def _shown(study: Study, values: Collection[float]) -> str:
    if not values:
        return ""
    center = f"{_center(study, values):.2f}"
    if len(values) == 1:
        return center
    if study.center == "median":
        return f"{center} ({min(values):.2f} to {max(values):.2f})"
    return f"{center} ± {np.std(list(values), ddof=1):.2f}"


def table_of_checks(checks: Sequence[Check]) -> Iterator[str]:
    """Yield the lines of the table of what must have learned."""
    yield ""
    yield "| has it learned? | value | 95% interval | must be better than |"
    yield "|---|---|---|---|"
    for check in checks:
        answer = "yes" if check.passed else "**no**"
        known = all(map(math.isfinite, check.interval))
        interval = (
            f"[{check.interval[0]:.2f}, {check.interval[1]:.2f}]" if known else "none of one seed"
        )
        value = f"{check.value:.2f}" if math.isfinite(check.value) else "no finished cell"
        yield (
            f"| `{check.learned.arm}`, {check.learned.measure}: {answer} | {value} | {interval} | "
            f"{check.learned.than:.2f}, {check.learned.what} |"
        )


def table_of_claims(judged: Sequence[Verdict], looks: Looks | None = None) -> Iterator[str]:
    """Yield the lines of the table of verdicts."""
    yield ""
    yield "| claim | verdict | difference | 95% interval | seeds |"
    yield "|---|---|---|---|---|"
    yield from (claim_row(_claim(verdict)) for verdict in judged)
    yield ""
    kind = "Student's t interval"
    if looks is not None:
        kind = f"the repeated confidence interval (looks after {looks.first} to {looks.most} seeds)"
    yield (
        f"Difference: first arm minus second, the mean over seeds, with {kind} of the paired "
        "differences."
    )


def of_text(study: Study, cost: Mapping[str, Any] | None) -> str:
    """Return what text the runs of a study read, and, if it is known, what they have cost."""
    text = f"{study.text.capitalize()} text"
    if not cost:
        return f"{text}."
    sizes = " to ".join(dict.fromkeys(f"{number:,}" for number in cost["parameters"]))
    time = f"{cost['runs']} runs, {cost['minutes']:.0f} minutes of training"
    return f"{text}; {sizes} parameters; {time}."


def claim_row(claim: Mapping[str, Any]) -> str:
    """Return the line of a claim in a table, from its entry in NAME.json."""
    if not claim["verdict"]:
        return f"| {claim['text']} | no finished cells | | | 0 |"
    low, high = claim["interval"]
    interval = "none of one seed" if None in (low, high) else f"[{low:+.2f}, {high:+.2f}]"
    margin = claim["within"] or (claim["verdict"] == verdicts.EQUAL and claim["margin"])
    verdict = claim["verdict"] + (f" (within {margin:g})" if margin else "")
    difference = f"{claim['difference']:+.2f}"
    return f"| {claim['text']} | {verdict} | {difference} | {interval} | {claim['seeds']} |"


def _claim(verdict: Verdict) -> dict[str, Any]:
    """Return a claim and its verdict as JSON has them."""
    return dataclasses.asdict(verdict.claim) | {
        "verdict": verdict.verdict,
        "seeds": verdict.seeds,
        "difference": _finite(verdict.difference),
        "interval": [_finite(bound) for bound in verdict.interval],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _to_json(
    study: Study, values: Values, judged: Sequence[Verdict], looks: Looks | None
) -> dict[str, Any]:
    claims = [_claim(verdict) for verdict in judged]
    chosen = {"best": best(study, values)} if study.best_by else {}
    learned = [
        dataclasses.asdict(check.learned) | {"value": _finite(check.value), "passed": check.passed}
        for check in verdicts.checks(study, values)
    ]
    design = {"looks": dataclasses.asdict(looks)} if looks else {}
    checked = {"learned": learned} if learned else {}
    return {"values": values, "claims": claims} | checked | design | chosen


def draw(study: Study, values: Values, path: pathlib.Path) -> None:
    """Draw each seed of each arm, and our centers against the paper's numbers, a row per measure.

    The seeds are drawn over the number of `study.curve`, if there is one, and otherwise in a row
    for each arm. The second column is left out if the paper has no numbers.
    """
    import matplotlib.figure  # takes a second that errors need not wait for

    rows, height = len(study.measures), 3.5 if study.curve else 1 + 0.28 * len(study.arms)
    columns = 1 + any(arm.paper for arm in study.arms.values())
    figure = matplotlib.figure.Figure(figsize=(5.5 * columns, height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for (left, *right), name in zip(panels, study.measures, strict=True):
        if study.curve:
            _draw_curve(left, study, study.curve, values, name)
        else:
            _draw_seeds(left, study, values, name)
        for panel in right:
            _draw_paper(panel, study, values, name)
    figure.savefig(path, dpi=120)


def _draw_seeds(panel: Any, study: Study, values: Values, name: str) -> None:
    for row, arm in enumerate(study.arms):
        seed_values = list(values[arm][name].values())
        panel.plot(
            seed_values, [row] * len(seed_values), "o", color="tab:blue", markersize=4, alpha=0.6
        )
        if seed_values:
            panel.plot(_center(study, seed_values), row, "k|", markersize=12)
    panel.set_yticks(range(len(study.arms)), study.arms, fontsize=7)
    panel.invert_yaxis()
    panel.set(xlabel=f"{name} (each seed, and the {study.center})")
    panel.grid(axis="x", alpha=0.3)


def _draw_curve(panel: Any, study: Study, curve: Curve, values: Values, name: str) -> None:
    for line, arms in curve.lines.items():
        seeds = {
            number: list(values[arm][name].values())
            for number, arm in sorted(arms.items())
            if values[arm][name]
        }
        centers = [_center(study, of_arm) for of_arm in seeds.values()]
        (drawn,) = panel.plot(list(seeds), centers, "-", label=line)
        for number, of_arm in seeds.items():
            panel.plot(
                [number] * len(of_arm), of_arm, "o", color=drawn.get_color(), ms=4, alpha=0.6
            )
    for learned in study.learned:
        if learned.measure == name:
            panel.axhline(learned.than, color="gray", linestyle=":", label=learned.what)
    numbers = sorted({number for arms in curve.lines.values() for number in arms})
    panel.set_xscale("log")
    panel.set_xticks(numbers, [f"{number:g}" for number in numbers])
    panel.minorticks_off()
    panel.set(xlabel=curve.number, ylabel=f"{name} (each seed, and the {study.center})")
    panel.legend(fontsize=7)
    panel.grid(alpha=0.3)


def _draw_paper(panel: Any, study: Study, values: Values, name: str) -> None:
    for arm, settings in study.arms.items():
        seed_values = list(values[arm][name].values())
        if seed_values and name in settings.paper:
            point = (settings.paper[name], _center(study, seed_values))
            panel.plot(*point, "o", color="tab:blue")
            panel.annotate(arm, point, fontsize=6)
    panel.set_visible(bool(panel.lines))
    in_paper = study.measures[name].in_paper or "the paper's number"
    panel.set(xlabel=f"{in_paper} in the paper", ylabel=f"{name} here")
