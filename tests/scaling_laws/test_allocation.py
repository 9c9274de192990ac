"""`scaling plan`: the best size for a budget, what half of it loses, chip hours, the command."""

import json

import pytest

from t5x_like import scaling
from t5x_like.config import parse
from t5x_like.experiment import command_line
from t5x_like.research.planning import chips
from t5x_like.research.scaling_laws import allocation
from t5x_like.research.scaling_laws.law import PUBLISHED
from t5x_like.training import optimizers
from tests.programs import tiny_writer


@pytest.fixture(scope="module")
def gopher(tmp_path_factory):
    """The plan for the compute of Gopher, which Chinchilla 70B was trained with."""
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    scaling.main(["plan", "--flops=5.76e23", f"--json={file}", "--config.data.seed=1"])
    return json.loads(file.read_text())


def test_gophers_compute_gives_chinchilla(gopher):
    assert gopher["size"] == "70b"
    assert gopher["N"] == pytest.approx(70e9, rel=0.05)
    assert gopher["D"] == pytest.approx(1.4e12, rel=0.06)
    assert gopher["tokens"] == pytest.approx(1.4e12, rel=0.01)
    # The rounded constants that Hoffmann et al. print give 32 billion.
    n, _ = PUBLISHED["hoffmann"].optimum(5.76e23)
    assert n == pytest.approx(32e9, rel=0.01)


def test_half_the_size_at_the_same_flops(gopher):
    law, half = PUBLISHED["besiroglu"], gopher["half_size"]
    assert half["loss"] == pytest.approx(float(law.loss(gopher["N"] / 2, 2 * gopher["D"])))
    assert half["lost"] == pytest.approx(half["loss"] - gopher["loss"])
    n, d = law.optimum(half["flops_that_reach_it"])
    assert float(law.loss(n, d)) == pytest.approx(half["loss"])
    assert half["flops_that_reach_it"] < gopher["flops"]


def test_chip_hours_are_those_of_the_peak(gopher):
    # TPU v4: 275 teraflops; a v3 chip is two devices of 61.5.
    assert gopher["chip_hours"]["v4"] == pytest.approx(5.76e23 / (275e12 * 0.4) / 3600)
    assert gopher["chip_hours"]["v3"] == pytest.approx(5.76e23 / (123e12 * 0.4) / 3600)
    assert gopher["chip_hours"].keys() == chips.CHIPS.keys()


def test_the_command_has_a_config_of_that_length(gopher):
    words = gopher["command"].split()
    assert words[:3] == ["python", "-m", "t5x_like.train"]
    settings, rest = command_line.parse(words[3:])
    assert rest == []
    assert settings.train.steps == settings.optimizer.decay_steps == gopher["steps"]
    assert settings.workdir == "runs/chinchilla_70b_6e+23"
    assert settings.data.seed == 1


def test_the_command_of_a_short_run_has_a_schedule_that_fits(tmp_path):
    file = tmp_path / "plan.json"
    scaling.main(["plan", "--flops=1e17", "--system=gpt2", f"--json={file}"])
    settings, _ = command_line.parse(json.loads(file.read_text())["command"].split()[3:])
    optimizers.build(parse(settings).optimizer, axes={})
    assert settings.train.steps == 10 * settings.optimizer.warmup_steps + 3


def test_a_plan_by_ones_own_fit(tmp_path, capsys):
    file = tmp_path / "fit.json"
    law = {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28}
    file.write_text(json.dumps({"approach_3": law | {"a": 0.4516}}))
    assert allocation.find_law(str(file)) == PUBLISHED["hoffmann"]
    file.write_text(json.dumps({"approach_3": None}))
    with pytest.raises(ValueError, match="has no approach_3 with E, A, B"):
        allocation.find_law(str(file))


def test_on_a_topology_the_step_is_compiled():
    settings = parse(tiny_writer.settings("gpt2"))
    found = allocation.on_topology({"steps": 100}, settings, chips.topology("cpu:1"))
    assert (found["topology"], found["chips"], found["fits"]) == ("cpu:1", 1, None)
    assert found["hours_at_least"] is None  # no peak is known of a CPU


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--flops=1e12"], "the nearest one of chinchilla is '74m' with 73,"),
        (["--flops=0"], "--flops=0 must be above 0"),
        (["--flops=1e21", "--utilization=2"], "--utilization=2 must be above 0, up to 1"),
        (["--flops=1e21", "--law=hofman"], "Did you mean 'hoffmann'?"),
        (["--flops=1e21", "--system=chinchila"], "Did you mean 'chinchilla'?"),
        (["--flops=1e21", "--topology=v4"], "--topology='v4' is not a chip and a shape"),
        (["--flops=x"], "argument --flops: invalid float value: 'x'"),
        (["--flops=1e17", "--config.data.batch_size=65536"], "too small for size 74m"),
    ],
)
def test_bad_flags_of_a_plan(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        scaling.main(["plan", *arguments])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
