"""The kept plans: configs that can be trained, on slices that they divide, with results in docs."""

import math
from pathlib import Path

import pytest

from configs import plans
from t5x_like import partitioning
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.planning import batches, chips

PAGE = (Path(__file__).resolve().parents[2] / "docs/plans.md").read_text("utf-8")


@pytest.mark.parametrize("name", plans.TOPOLOGIES)
def test_a_layout_divides_its_slice_its_model_and_its_batch(name):
    settings = plans.get_config(name)
    of_config(settings)
    topology = chips.topology(plans.TOPOLOGIES[name])
    model = model_side.build(of_config(settings), devices=topology.devices())
    cut = partitioning.batch_parts(model.mesh.shape)
    rows = batches.largest(of_config(settings)).part.data.batch_size
    # A microbatch too: else devices would wait for each other's rows.
    assert rows % (cut * settings.train.microbatches) == 0
    # Parameters are cut, and with them gradients and the optimizer's state.
    assert math.prod(model.mesh.shape.values()) > model.mesh.shape["data"]


def test_every_layout_has_its_slice_and_its_result():
    assert [line[4:] for line in PAGE.splitlines() if line.startswith("### ")] == list(
        plans.TOPOLOGIES
    )


def test_a_plan_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match="no plan 'gpt4': choose t5_11b_v4"):
        plans.get_config("gpt4")
