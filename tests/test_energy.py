"""Energy and emissions of published runs, and the cost in a plan and in a run's report."""

import pytest

from configs import palm
from t5x_like.config import parse
from t5x_like.config.run_settings import CostSettings
from t5x_like.evaluation import run_report
from t5x_like.experiment import energy
from t5x_like.experiment.run import of_config
from t5x_like.research.planning import batches

# Patterson et al. 2021, table 4: chips, days, watts, PUE, kg CO2e of a kWh; MWh and tonnes.
PUBLISHED = {
    "T5": (512, 20, 310, 1.12, 0.545, 85.7, 46.7),
    "Meena": (1024, 30, 289, 1.09, 0.415, 232, 96.4),
    "Switch Transformer": (1024, 27, 245, 1.10, 0.330, 179, 59.1),
    "GPT-3": (10_000, 14.8, 330, 1.10, 0.429, 1287, 552.1),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_energies_and_emissions(name):
    chips, days, watts, pue, carbon, mwh, tonnes = PUBLISHED[name]
    settings = CostSettings(watts=float(watts), pue=pue, kg_per_kwh=carbon)
    found = energy.cost(settings, kind="unknown", device_hours=days * 24 * chips)
    # The paper rounds days and watts.
    assert found.kwh == pytest.approx(1000 * mwh, rel=0.005)
    assert found.kg_co2e == pytest.approx(1000 * tonnes, rel=0.005)
    assert found.price is None


def test_two_devices_are_one_chip_of_v3_and_unknown_watts_are_not_guessed():
    found = energy.cost(CostSettings(price=2.0), kind="TPU v3", device_hours=64.0)
    assert (found.chip_hours, found.watts, found.price) == (32.0, 283.0, 64.0)
    found = energy.cost(CostSettings(), kind="TPU v6e", device_hours=64.0)
    assert (found.chip_hours, found.kwh, found.kg_co2e) == (64.0, None, None)


class Device:
    def __init__(self, platform, kind):
        self.platform, self.device_kind = platform, kind


def test_a_report_has_the_hours_of_all_logged_steps():
    log = {"train/steps_per_second": {10: 2.0, 30: 4.0}}  # 5 s each
    (line,) = run_report.costs(log, CostSettings(), devices=[Device("tpu", "TPU v4")] * 720)
    assert line == (
        "cost of the steps: 2 chip hours; 0.374 kWh, with 170 W a chip and a PUE of 1.1; "
        "0.1604 kg of CO2e, with 0.429 kg a kWh"
    )
    cpu = [Device("cpu", "cpu")]
    assert run_report.costs(log, CostSettings(), devices=cpu) == []
    (line,) = run_report.costs(log, CostSettings(price=36.0), devices=cpu)
    assert line.endswith("a price of 0.10, with 36 a chip and hour")
    (line,) = run_report.costs(log, CostSettings(price=0.9), devices=cpu)
    assert line.endswith("a price of 0.003, with 0.9 a chip and hour")


def test_tokens_of_a_run_of_phases():
    run = of_config(palm.get_config("540b"))
    # Section 5: 780 billion tokens.
    assert batches.tokens_of_run(run) == pytest.approx(780e9, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"pue": 0.9}, r"cost\.pue=0\.9"), ({"watts": -1.0}, r"cost\.watts=-1\.0")],
)
def test_impossible_assumptions_are_refused(settings, message):
    made = palm.get_config("8b")
    made.cost.update(settings)
    with pytest.raises(ValueError, match=message):
        parse(made)
