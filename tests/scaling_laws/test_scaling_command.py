"""`scaling fit`: what it reads, prints and writes, what it warns of, and what it refuses."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from t5x_like import scaling
from t5x_like.research.scaling_laws import analysis, cautions, runs
from t5x_like.research.scaling_laws.law import PUBLISHED, Law
from tests.programs import drawn_runs

ROOT = Path(__file__).resolve().parents[2]
LAW = PUBLISHED["hoffmann"]


def write(path, lines, header="N,D,C,loss"):
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def rows(found):
    return [f"{run.n},{run.d},{run.c},{run.loss}" for run in found]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The JSON and figures of a fit to noisy runs, whose N is known without embeddings too."""
    folder = tmp_path_factory.mktemp("fit")
    drawn = drawn_runs.grid(LAW, noise=3e-3)
    lines = [f"{row},{run.n * 0.8}" for row, run in zip(rows(drawn), drawn, strict=True)]
    csv = write(folder / "runs.csv", lines, header="N,D,C,loss,N_without_embeddings")
    flags = [f"--json={folder / 'fit.json'}", f"--figures={folder / 'figures'}", "--bootstrap=40"]
    scaling.main(["fit", str(csv), *flags])
    return folder


def test_the_law_is_within_the_intervals(fitted):
    found = json.loads((fitted / "fit.json").read_text())
    for name in ("approach_2", "approach_3", "variable_projection"):
        low, high = found[name]["intervals"]["a"]
        assert low <= found[name]["a"] <= high
        assert low <= LAW.a <= high
    for name, value in dataclasses.asdict(LAW).items():
        low, high = found["approach_3"]["intervals"][name]
        assert low <= value <= high
    assert found["approach_1"]["curves"] is False
    assert found["compute"] == pytest.approx({"k": 6.0, "s": 1.0})
    excluded = found["kaplan"]["published_a_excluded"]
    assert set(excluded) == {"approach_1", "approach_2", "approach_3", "approach_3_of_runs"}
    assert excluded["approach_2"] is True
    # Fewer parameters by a fifth: the same exponents, and A smaller by 0.8^alpha.
    other, own = found["without_embeddings"]["approach_3"], found["approach_3"]
    assert other["a"] == pytest.approx(own["a"], abs=1e-4)
    assert other["A"] == pytest.approx(own["A"] * 0.8 ** own["alpha"], rel=1e-3)


def test_figures_are_png_files(fitted):
    for name in ("approach_1.png", "approach_2.png", "approach_3.png"):
        assert (fitted / "figures" / name).read_bytes().startswith(b"\x89PNG")


FEW = """\
21096,224256,2.99678e+10,4.167406
43904,338944,9.99587e+10,3.898275
15808,2712576,2.99989e+11,3.806622
109088,422912,3.00112e+11,3.682373
43904,3390976,1.00004e+12,3.203483
43904,10172416,2.99997e+12,3.041906"""  # rows of docs/studies/ladder.csv


def test_few_runs_are_fitted_although_resamples_have_no_law(tmp_path):
    """Exponents of such resamples grow without a bound, and their powers overflow."""
    csv = write(tmp_path / "few.csv", FEW.splitlines())
    scaling.main(["fit", str(csv), f"--json={tmp_path / 'fit.json'}"])
    found = json.loads((tmp_path / "fit.json").read_text())["variable_projection"]
    assert all(math.isfinite(found[name]) for name in ("E", "A", "B", "alpha", "beta"))


def test_runs_kept_apart_are_predicted_and_not_fitted(tmp_path, capsys):
    drawn = drawn_runs.grid(LAW)
    far = drawn_runs.grid(LAW, budgets=(1e24,), sizes=1)
    wrong = [dataclasses.replace(run, loss=run.loss + 0.5) for run in far]
    csv, file = write(tmp_path / "runs.csv", rows(drawn + wrong)), tmp_path / "fit.json"
    scaling.main(["fit", str(csv), f"--json={file}", "--bootstrap=0", "--hold_out=1e24"])
    found = json.loads(file.read_text())
    assert found["runs"] == len(drawn)
    assert found["approach_3"]["a"] == pytest.approx(LAW.a)
    [one] = found["held_out"]
    assert one["loss"] - one["approach_3"] == pytest.approx(0.5, abs=1e-6)
    assert "(-0.5000)" in capsys.readouterr().out


def warnings_of(found, **changes):
    changed = [dataclasses.replace(run, **changes) for run in found]
    return "\n".join(analysis.analyse(changed, times=0)["warnings"])


def test_good_runs_have_no_warnings():
    law = Law(E=1.7, A=400.0, B=400.0, alpha=0.3, beta=0.3)  # equal exponents: no bias
    sizes = [float(n) for n in np.geomspace(1e8, 1e10, 7)]
    curves = drawn_runs.with_curves(law, sizes, [1e10])
    found = [dataclasses.replace(run, curve=curves[0].curve) for run in drawn_runs.grid(law)]
    assert warnings_of(found) == ""


def test_warnings():
    found = drawn_runs.grid(LAW)
    assert "approach 1 has no training curves" in warnings_of(found)
    assert "C is 1e+03 to 1e+03 times 6 N D" in warnings_of(
        [dataclasses.replace(run, n=run.n / 1000) for run in found]
    )
    assert "span 1.0 decades" in warnings_of(drawn_runs.grid(LAW, budgets=(1e19, 1e20)))
    assert "few points: 5 constants are fitted to 14" in warnings_of(
        drawn_runs.grid(LAW, budgets=(1e19, 1e21))
    )
    alone = drawn_runs.grid(LAW, budgets=(1e23, 1e24), sizes=2)
    assert "leaves out 2 budgets of fewer than 3 sizes (C = 1e+23 to 1e+24)" in warnings_of(
        found + alone
    )
    assert "35 of 35 runs have fewer than 300 steps" in warnings_of(found, steps=299)
    assert "at the edge of the sizes at C = 1e+18" in warnings_of(
        drawn_runs.grid(LAW, shift=10, reach=3)
    )


@pytest.mark.parametrize(("reach", "percent"), [(4, "+1.5%"), (16, "+6.2%")])
def test_the_bias_of_a_parabola_is_warned_of(reach, percent):
    """The percentages are those of seven sizes; of fifteen the paper has 1.3% and 5.4%."""
    text = warnings_of(drawn_runs.grid(LAW, reach=reach))
    assert f"x/÷ {reach}" in text
    assert f"N is {percent} off" in text


@pytest.mark.parametrize(
    ("times", "warned"), [(1.0, False), (1.2, False), (1.25, True), (4, True), (math.inf, True)]
)
def test_a_cosine_that_is_not_as_long_as_the_run_is_warned_of(times, warned):
    found = [
        dataclasses.replace(run, decay_tokens=times * run.d) for run in drawn_runs.grid(LAW)[:6]
    ]
    assert any("does not decay with the run" in one for one in cautions.of_runs(found)) == warned


def test_points_of_a_run_are_its_curve(tmp_path):
    curves = drawn_runs.with_curves(LAW, [1e8, 3e8, 1e9], [1e10, 3e10, 9e10])
    lines = [
        f"{run.n},{d},{6 * run.n * d},{loss},{run.name}"
        for run in curves
        for d, loss in zip(*run.curve, strict=True)
    ]
    found = runs.read_csv(write(tmp_path / "runs.csv", lines, header="N,D,C,loss,run"))
    assert [run.name for run in found] == [run.name for run in curves]
    for one, other in zip(found, curves, strict=True):
        assert (one.n, one.d, one.c) == pytest.approx((other.n, other.d, other.c))
        np.testing.assert_allclose(one.curve, other.curve)


GOOD = rows(drawn_runs.grid(LAW))


@pytest.mark.parametrize(
    ("lines", "header", "message"),
    [
        (GOOD[:4], "N,D,C,loss", "has 4 runs: the law has 5 constants and needs 6 runs or more"),
        (GOOD, "N,D,flops,nats", "lacks the columns C, loss: it has N, D, flops, nats"),
        ([*GOOD, "1e8,1e9,6e17,-2"], "N,D,C,loss", "line 37: loss='-2' must be a number above 0"),
        ([*GOOD, "1e8,1e9,,2"], "N,D,C,loss", "line 37: C='' must be a number above 0"),
        ([*GOOD, "1e8,x,6e17,2"], "N,D,C,loss", "line 37: D='x' must be a number above 0"),
        ([*GOOD, "nan,1,6e17,2"], "N,D,C,loss", "line 37: N='nan' must be a number above 0"),
        (["1e8,1e9,6e17,2"] * 9, "N,D,C,loss", "has runs of 1 sizes N: the law needs 3"),
        (["1e8,1e9,6e17,2,x", "2e8,1e9,6e17,2,x"], "N,D,C,loss,run", "run='x' has several N"),
    ],
)
def test_a_bad_file_is_one_line_and_status_2(lines, header, message, tmp_path, capsys):
    path = write(tmp_path / "runs.csv", lines, header=header)
    with pytest.raises(SystemExit) as stopped:
        scaling.main(["fit", str(path), f"--json={tmp_path / 'fit.json'}"])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "fit.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fti"], "action='fti' does not exist. Did you mean 'fit'?"),
        (["fit"], "RUNS (see --help)"),
        (["fit", "nowhere.csv"], "'nowhere.csv' does not exist: give a CSV file or a folder"),
        (["fit", "nowhere.csv", "--bootstrap=-1"], "--bootstrap=-1 must be 0 or more"),
        (["fit", "nowhere.csv", "--jsn=x"], "the flag '--jsn' does not exist. Did you mean"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        scaling.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_help_and_fits_do_not_import_jax():
    program = (
        "import sys; from t5x_like import scaling; import t5x_like.research.scaling_laws.analysis; "
        "sys.exit(bool({'jax', 'tensorflow'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0
