"""Studies in which a run starts from another run in each arm."""

import dataclasses
import pathlib

import pytest

from t5x_like import config
from t5x_like.research.studies import Arm, cells, definition
from tests.programs import toy_study

ROOT = pathlib.Path(__file__).parents[2]


def test_an_arm_may_start_from_another_run(tmp_path):
    pretraining, fine_tuning = toy_study.get_study().runs.values()
    alone = dataclasses.replace(fine_tuning, starts_from="")
    alone = dataclasses.replace(alone, changes={**alone.changes, "initialize": "bert"})
    arms = {
        "alone": Arm(leaves_out=("pretraining", "more")),
        "one": Arm(starts_from={"fine_tuning": "pretraining"}),
        "two": Arm(starts_from={"fine_tuning": "more"}),
    }
    runs = {"pretraining": pretraining, "more": fine_tuning, "fine_tuning": alone}
    study = toy_study.get_study(runs=runs, arms=arms, claims=(), seeds=(0,))
    found = cells.cells(study, tmp_path / "runs", changes={})
    first, second, third = (cell.runs for cell in found)
    assert (first["fine_tuning"].after, first["fine_tuning"].settings.initialize) == (None, "bert")
    for cell, name in ((second, "pretraining"), (third, "more")):
        assert cell["fine_tuning"].after is cell[name]
        assert cell["fine_tuning"].settings.initialize == str(cell[name].folder)


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        (Arm(starts_from={"tuning": "pretraining"}), "run of arms.a='tuning' does not exist"),
        (
            Arm(starts_from={"fine_tuning": "pretrain"}),
            r"arms.a.starts_from\['fine_tuning'\]='pretrain'.*Did you mean 'pretraining'",
        ),
        (
            Arm(starts_from={"pretraining": "fine_tuning"}),
            r"\['pretraining'\]='fine_tuning' must be an earlier run that the arm has",
        ),
        (
            Arm(starts_from={"fine_tuning": "pretraining"}, leaves_out=("pretraining",)),
            r"\['fine_tuning'\]='pretraining' must be an earlier run that the arm has",
        ),
        (
            Arm(
                starts_from={"fine_tuning": "pretraining"},
                changes={"fine_tuning": {"initialize": "bert"}},
            ),
            r"\['fine_tuning'\]='pretraining' and initialize='bert' are two starts: leave out one",
        ),
    ],
)
def test_an_arm_with_a_wrong_start_is_refused(arm, message):
    with pytest.raises(ValueError, match=message):
        toy_study.get_study(arms={"a": arm}, claims=())


def test_mt_dnn_is_fine_tuned_after_its_shared_run(tmp_path):
    """Each task's run is that of BERT alone but for its start; the new tasks' are shared."""
    _, study = definition.load("mt_dnn")
    found = cells.cells(dataclasses.replace(study, seeds=(0,)), tmp_path, changes={})
    shared, bert, tuned = (cell.runs for cell in found)
    for name in ("fields", "senses"):
        assert bert[name].settings.initialize == "runs/studies/mt_dnn_bert"
        assert tuned[name].after is tuned["shared"] is shared["shared"]
        own, other = (config.to_dict(one[name].settings) for one in (tuned, bert))
        different = {key for key in own if own[key] != other[key]}
        assert different == {"initialize", "workdir"}
    assert all(tuned[f"tags_{rows}"] is shared[f"tags_{rows}"] for rows in (8, 64))
