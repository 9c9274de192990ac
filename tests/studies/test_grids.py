"""Studies that are grids: an arm for each combination, medians, the best arm, an argument."""

import dataclasses
import pathlib

import pytest

from t5x_like.research.studies import Arm, OutcomeMeasure, cells, definition, grid, results
from tests.programs import toy_study

ROOT = pathlib.Path(__file__).parents[2]


def test_a_grid_has_an_arm_for_each_combination():
    arms = grid(
        "fine_tuning", {"optimizer.learning_rate": (1e-4, 0.01), "data.batch_size": (8, 16)}
    )
    assert list(arms) == [
        "learning_rate-0.0001_batch_size-8",
        "learning_rate-0.0001_batch_size-16",
        "learning_rate-0.01_batch_size-8",
        "learning_rate-0.01_batch_size-16",
    ]
    expected = {"fine_tuning": {"optimizer.learning_rate": 0.01, "data.batch_size": 8}}
    assert arms["learning_rate-0.01_batch_size-8"].changes == expected
    toy_study.get_study(arms=arms, claims=())


@pytest.mark.parametrize(("center", "best"), [("median", "deep"), ("mean", "shallow")])
def test_the_best_arm_is_chosen_by_the_center_of_one_measure_and_has_all_numbers(center, best):
    measures = {
        name: OutcomeMeasure(run="fine_tuning", number=name, smaller_is_better=True)
        for name in ("validation", "test")
    }
    study = toy_study.get_study(
        measures=measures,
        claims=(),
        arms={"shallow": Arm(), "deep": Arm(), "none": Arm()},
        center=center,
        best_by="validation",
        seeds=(0, 1, 2),
    )
    values = {
        "shallow": {"validation": {0: 3.0, 1: 4.0, 2: 5.0}, "test": {0: 7.0, 1: 8.0, 2: 9.0}},
        "deep": {"validation": {0: 2.0, 1: 3.0, 2: 9.0}, "test": {0: 9.0, 1: 9.5, 2: 11.5}},
        "none": {"validation": {}, "test": {}},
    }
    assert results.best(study, values) == best
    text = "\n".join(results.lines(study, "toy", values, []))
    if center == "median":
        assert "| deep | 3.00 (2.00 to 9.00) | 9.50 (9.00 to 11.50) |" in text
        assert "**deep**, of 3 seeds with medians validation 3.00, test 9.50." in text
    else:
        assert "| deep | 4.67 ± 3.79 | 10.00 ± 1.32 |" in text
        assert "**shallow**, of 3 seeds with means validation 4.00, test 8.00." in text


def test_a_study_takes_an_argument_after_a_colon(tmp_path):
    name, study = definition.load("fine_tuning_grid:entailment")
    assert name == "fine_tuning_grid_entailment"
    changes = {"initialize": "somewhere"}
    found = cells.cells(dataclasses.replace(study, seeds=(0,)), tmp_path, changes=changes)
    runs = cells.runs_of(found)
    assert len(runs) == 6
    assert {run.settings.data.batch_size * run.settings.train.steps for run in runs} == {24_000}
    assert {run.settings.optimizer["decay_steps"] for run in runs} == {750, 1500}
    assert all(run.settings.initialize == "somewhere" for run in runs)
    with pytest.raises(ValueError, match=r"after the colon='topics'.*Did you mean 'topic'"):
        definition.load("fine_tuning_grid:topics")
    with pytest.raises(ValueError, match="is one study: leave out ':base'"):
        definition.load("t5_grid:base")
