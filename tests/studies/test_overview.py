"""All studies on one page: counts, verdicts, what is kept of the page; the hours of all."""

import json
import math

import pytest

from t5x_like import study as command
from t5x_like.research.studies import overview
from tests.programs import toy_study


def claim(verdict, *, difference=1.0, interval=(0.5, 1.5), **changes):
    return {
        "text": "Deep is better.",
        "verdict": verdict,
        "difference": difference,
        "interval": list(interval),
        "seeds": 4,
        "within": 0.0,
        "margin": 0.0,
        **changes,
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    studies = {name: toy_study.get_study(title=f"Study {name}") for name in ("a", "b", "c")}
    monkeypatch.setattr(overview, "all_studies", lambda: studies)
    of_a = [claim("held"), claim("equal", margin=2.0), claim("did not hold", within=0.5)]
    of_b = [
        claim("cannot be told apart", interval=(None, None)),
        claim("", difference=None, interval=(None, None), seeds=0),
    ]
    cost = {"runs": 8, "parameters": [1200, 34_000], "minutes": 12.3}
    for name, stored in (("a", {"claims": of_a, "cost": cost}), ("b", {"claims": of_b})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"values": {}} | stored))
    return tmp_path


def test_the_page_counts_the_claims_and_keeps_what_is_around_them(folder):
    (folder / "README.md").write_text(
        "# Ours\n\n<!-- claims: begin -->\nstale\n<!-- claims: end -->\nend\n"
    )
    command.main(["--all", "--report", f"--write={folder}"])
    text = (folder / "README.md").read_text()
    assert text.startswith("# Ours\n")
    assert text.endswith("<!-- claims: end -->\nend\n")
    assert "stale" not in text
    assert (
        "2 of 3 studies have results: 5 claims, of which 1 held, 1 did not, 1 are equal, and 2 "
        "cannot be told apart: 3 of 5 are decided."
    ) in text
    assert "| Deep is better. | equal (within 2) | +1.00 | [+0.50, +1.50] | 4 |" in text
    assert "| Deep is better. | did not hold (within 0.5) |" in text
    assert "| cannot be told apart | +1.00 | none of one seed | 4 |" in text
    assert "| Deep is better. | no finished cells | | | 0 |" in text
    assert (
        "No paper, table 0: [a](a.md). Generated text; 1,200 to 34,000 parameters; "
        "8 runs, 12 minutes of training."
    ) in text
    assert "No paper, table 0: [b](b.md). Generated text.\n" in text
    assert "No paper, table 0: `c`, not run. Generated text." in text
    command.main(["--all", "--report", f"--write={folder}"])
    assert (folder / "README.md").read_text() == text


def test_a_page_without_a_place_for_the_claims_gets_one(folder):
    (folder / "README.md").write_text("# Ours\n")
    overview.write(folder)
    assert (folder / "README.md").read_text().startswith("# Ours\n\n<!-- claims: begin -->")
    (folder / "a.json").write_text("{")
    with pytest.raises(ValueError, match=r"a.json: .*write it again by t5x-like study a"):
        overview.write(folder)


def test_the_hours_of_all_studies_and_of_those_that_cannot_be_planned():
    lines = [*overview.hours_of({"short": 3.6e12, "longer_name": math.nan}, rate=1e9)]
    assert lines == [
        "short            1.00 hours",
        "longer_name  cannot be planned",
        "all              1.00 hours at 1e+09 FLOP/s",
    ]


def test_every_study_of_the_repository_is_on_the_page():
    found = overview.all_studies()
    assert {"t5_grid", "xlnet_parts", "fine_tuning_grid", "pyglue_demos"} <= set(found)
    assert all(study.title and study.source for study in found.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name one study, or all by --all"),
        (["t5_grid", "--all", "--plan"], "name one study, or all by --all"),
        (["--all"], "add --plan or --report"),
        (["--all", "--plan", "--report"], "add --plan or --report"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
