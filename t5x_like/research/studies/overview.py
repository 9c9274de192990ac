"""All studies on one page: each claim with its verdict, and how many claims are decided."""

import collections
import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5x_like.research.studies import verdicts
from t5x_like.research.studies.definition import FOLDER, Study, load
from t5x_like.research.studies.results import claim_row, of_text

PAGE = "README.md"
# What is between these lines of the page is written anew; the rest is kept.
_BEGIN, _END = "<!-- claims: begin -->", "<!-- claims: end -->"


@dataclasses.dataclass(frozen=True)
class StudyResult:
    """A study and its stored results.

    Attributes:
        name: its name.
        study: its definition.
        written: the content of NAME.json; None if the study was not run.
    """

    name: str
    study: Study
    written: Mapping[str, Any] | None

    @property
    def claims(self) -> Sequence[Mapping[str, Any]]:
        """The judged claims."""
        return self.written["claims"] if self.written else ()


def all_studies() -> dict[str, Study]:
    """Return the studies of configs/studies/, with the default argument of `get_study`."""
    return dict(load(file.stem) for file in sorted(pathlib.Path(FOLDER).glob("*.py")))


def results(folder: pathlib.Path) -> list[StudyResult]:
    """Return all studies with their results in a folder.

    Raises:
        ValueError: a file of results is damaged.
    """
    results = []
    for name, study in all_studies().items():
        file = folder / f"{name}.json"
        try:
            written = json.loads(file.read_bytes()) if file.is_file() else None
        except ValueError as error:
            raise ValueError(f"{file}: {error}; write it again by t5x-like study {name}") from error
        results.append(StudyResult(name, study, written))
    return results


def lines(results: Sequence[StudyResult]) -> Iterator[str]:
    """Yield the lines of the page."""
    counts = collections.Counter(claim["verdict"] for result in results for claim in result.claims)
    total = counts.total()
    undecided = counts[verdicts.OPEN] + counts[""]
    run = sum(result.written is not None for result in results)
    yield (
        f"{run} of {len(results)} studies have results: {total} claims, of which {counts['held']} "
        f"held, {counts['did not hold']} did not, {counts['equal']} are equal, and {undecided} "
        f"cannot be told apart: {total - undecided} of {total} are decided."
    )
    for result in results:
        yield ""
        yield f"## {result.study.title}"
        yield ""
        where = (
            f"[{result.name}]({result.name}.md)" if result.written else f"`{result.name}`, not run"
        )
        cost = result.written and result.written.get("cost")
        yield f"{result.study.source}: {where}. {of_text(result.study, cost)}"
        if result.claims:
            yield ""
            yield "| claim | verdict | difference | 95% interval | seeds |"
            yield "|---|---|---|---|---|"
            yield from map(claim_row, result.claims)


def write(folder: pathlib.Path) -> pathlib.Path:
    """Write the claims of all studies into the page of a folder; return its path.

    Raises:
        ValueError: see `results`.
    """
    text = "\n".join([_BEGIN, "", *lines(results(folder)), "", _END])
    page = folder / PAGE
    before = page.read_text() if page.is_file() else f"# Results of studies\n\n{_BEGIN}\n{_END}\n"
    if _BEGIN not in before or _END not in before:
        before = f"{before.rstrip()}\n\n{_BEGIN}\n{_END}\n"
    head, _, rest = before.partition(_BEGIN)
    folder.mkdir(parents=True, exist_ok=True)
    page.write_text(head + text + rest.partition(_END)[2])
    return page


def hours_of(flops: Mapping[str, float], *, rate: float) -> Iterator[str]:
    """Yield the lines of a plan: the hours of each study, and of all.

    Args:
        flops: of the runs of each study that are not finished; NaN for a study that cannot be
            planned.
        rate: FLOP/s.
    """
    width = max(map(len, flops)) + 2
    for name, study_flops in flops.items():
        hours = (
            "cannot be planned"
            if math.isnan(study_flops)
            else f"{study_flops / rate / 3600:8.2f} hours"
        )
        yield f"{name:<{width}}{hours}"
    known = math.fsum(study_flops for study_flops in flops.values() if not math.isnan(study_flops))
    yield f"{'all':<{width}}{known / rate / 3600:8.2f} hours at {rate:.3g} FLOP/s"
