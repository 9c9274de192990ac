"""The kept plans: configs that can be trained, on slices that they divide, with results in docs."""

import math
from pathlib import Path

import pytest

from configs import plans, published_runs
from t5x_like import partitioning
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.research.planning import batches, chips

CONFIGS = dict.fromkeys(published_runs.RUNS, published_runs.get_config)
CONFIGS |= dict.fromkeys(plans.TOPOLOGIES, plans.get_config)
SLICES = {name: run.topology for name, run in published_runs.RUNS.items()} | plans.TOPOLOGIES
PAGE = (Path(__file__).resolve().parents[2] / "docs/plans.md").read_text("utf-8")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_layout_divides_its_slice_its_model_and_its_batch(name):
    settings = CONFIGS[name](name)
    of_config(settings)
    topology = chips.topology(SLICES[name])
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


@pytest.mark.parametrize("scale", [16, 32, 64, 128, 256, 512])
def test_a_published_size_has_its_billions_of_parameters(scale):
    [name, *_] = [name for name in published_runs.RUNS if name.startswith(f"{scale}b_")]
    size = published_runs.get_config(name).model
    attention = 4 * size.d_model * size.heads * size.head_width
    layer = attention + 3 * size.d_model * size.d_ff
    total = size.layers * layer + 2 * size.vocab_size * size.d_model
    assert total == pytest.approx(scale * 1e9, rel=0.04)


def test_a_published_run_has_the_tokens_of_its_source():
    # Of a step on 256 chips: the log of tpu-recipes, training/trillium, has these `total_weights`.
    tokens = {"llama2_70b_v6e": 2_097_152, "llama3_8b_v6e": 8_388_608}
    for name, number in tokens.items():
        data = published_runs.get_config(name).data
        assert data.batch_size * data.lengths.targets == number


def test_a_plan_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match="no plan 'gpt4': choose t5_11b_v4"):
        plans.get_config("gpt4")
