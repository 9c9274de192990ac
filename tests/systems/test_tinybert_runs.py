"""TinyBERT in training: on eight devices as on one, resumed bit for bit, from stage to stage."""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_like import partitioning
from t5x_like.checkpoints import Checkpoints
from t5x_like.config import parse, to_dict
from t5x_like.config.run_settings import MeshSettings
from t5x_like.experiment import model_side
from t5x_like.experiment.run import of_config
from t5x_like.research.studies import cells, definition
from t5x_like.systems import bert, tinybert
from tests.systems.test_tinybert import settings

TEACHER = bert.SIZES["base"] | {
    "vocab_size": 40,
    "positions": 16,
    "layers": 4,
    "d_model": 32,
    "d_ff": 48,
    "heads": 4,
}
ROWS, LENGTH = 8, 12


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A checkpoint of a teacher that was fine-tuned, so to speak, on three classes."""
    config = settings("", TEACHER | {"head": "classification", "labels": 3})
    config.system = "bert"
    config.optimizer.frozen = ()
    folder = tmp_path_factory.mktemp("teacher")
    state = model_side.build(of_config(config)).initial_state()
    # Weights so large that its layers differ.
    params = jax.tree.map(lambda x: 10 * x if x.ndim > 1 else x, state.params)
    with Checkpoints(folder, metadata={"config": to_dict(parse(config))}) as saver:
        saver.save(1, state.replace(params=params), {0: b""})
    return folder


def student(**changes):
    made = tinybert.student_of("bert", TEACHER, layers=2, d_model=16, d_ff=24)
    return made | {"dropout": 0.1} | changes


def of_task(teacher):
    head = {"head": "classification", "labels": 3}
    own = student()["teacher"] | head | {"folder": str(teacher)}
    return student(**head, teacher=own)


def batch(step):
    random = np.random.default_rng(step)
    segments = (np.arange(LENGTH) < random.integers(4, LENGTH + 1, (ROWS, 1))).astype(np.int32)
    return {
        "encoder_input_tokens": random.integers(5, 40, (ROWS, LENGTH)).astype(np.int32) * segments,
        "encoder_segment_ids": segments,
        "encoder_token_types": segments * 0,
        "label": random.integers(0, 3, ROWS).astype(np.int32),
    }


def step_on(model, state, steps):
    found = []
    with partitioning.layout(model.mesh):
        for step in steps:
            state, metrics = model.train_step(state, model.put(batch(step)))
            found.append({name: float(one.compute()) for name, one in metrics.items()})
    return state, found


def sharded(folder, model):
    config = settings(folder, model)
    config.optimizer = {"name": "adamw", "schedule": "constant", "learning_rate": 0.01}
    config.optimizer.frozen = ("teacher",)
    config.mesh = {"data": 2, "fsdp": 2, "expert": 1, "model": 2}
    return config


@pytest.fixture(scope="module")
def general(teacher, tmp_path_factory):
    """General distillation on eight devices: its model, a checkpoint of step 2, its parameters."""
    config = sharded(teacher, student())
    config.optimizer.frozen = ("teacher", "head")
    model = model_side.build(of_config(config))
    folder = tmp_path_factory.mktemp("general")
    state, _ = step_on(model, model.initial_state(), range(2))
    with Checkpoints(folder, metadata={"config": to_dict(parse(config))}) as saver:
        saver.save(2, state, {0: b""})
    return model, folder, jax.device_get(state.params)


@pytest.mark.slow
def test_general_distillation_resumes_bit_for_bit(general):
    model, folder, _ = general
    initial = jax.device_get(model.initial_state().params)
    expected, metrics = step_on(model, model.initial_state(), range(4))
    assert {"hidden/distance", "attention/distance", "embedding/distance"} <= metrics[0].keys()
    with Checkpoints(folder) as saver:
        state, _ = saver.restore_latest(model.abstract_state)
    found, rest = step_on(model, state, range(2, 4))
    assert rest == metrics[2:]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(expected))
    after = jax.device_get(expected.params)
    for frozen in ("teacher", "head"):
        jax.tree.map(np.testing.assert_array_equal, after[frozen], initial[frozen])
    moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), after, initial)
    for part in ("embeddings", "encoder", "hidden_map", "embedding_map"):
        leaves = jax.tree.leaves_with_path(moved[part])
        assert all(value > 0 for _, value in leaves), leaves


@pytest.mark.slow
def test_general_distillation_on_eight_devices_is_that_on_one(general, teacher):
    several, *_ = general
    one = model_side.build(
        several.run.replace(mesh=MeshSettings(data=1)), devices=jax.devices()[:1]
    )
    (_, [found]), (_, [expected]) = (
        step_on(model, model.initial_state(), range(1)) for model in (several, one)
    )
    assert "grad_norm" in expected
    for name, value in expected.items():
        # Float32 sums in another order.
        np.testing.assert_allclose(found[name], value, rtol=1e-4, err_msg=name)


def test_a_task_starts_from_the_student_of_general_distillation(general, teacher):
    _, folder, own = general
    model = model_side.build(
        of_config(settings(folder, of_task(teacher))), devices=jax.devices()[:1]
    )
    params = jax.device_get(model.initial_state().params)
    for part in ("embeddings", "encoder", "hidden_map", "embedding_map"):
        jax.tree.map(np.testing.assert_array_equal, params[part], own[part])
    jax.tree.map(np.testing.assert_array_equal, params["head"]["summary"], own["head"]["summary"])
    assert params["head"]["classifier"]["kernel"].shape == (16, 3)
    assert params["teacher"]["head"]["classifier"]["kernel"].shape == (32, 3)


def test_every_arm_of_the_study_has_a_valid_config_and_the_papers_numbers(teacher, tmp_path):
    _, study = definition.load("tinybert")
    runs = {
        name: dataclasses.replace(
            run, config=run.config.replace("runs/studies/homonyms_fields", str(teacher))
        )
        for name, run in study.runs.items()
    }
    one = dataclasses.replace(study, runs=runs, seeds=(0,))
    found = cells.cells(one, tmp_path, changes={})
    # A student of general distillation, seven after the first step, eight after the second.
    assert len(cells.runs_of(found)) == 1 + 7 + 8
    # Jiao et al. 2019, tables 2 and 3.
    assert study.arms["tinybert"].paper == {"accuracy": 75.6}
    assert study.arms["without_attention"].paper == {"accuracy": 71.0}
    by_arm = {cell.arm: cell.runs for cell in found}
    random = by_arm["without_general"]["intermediate"].settings
    assert (random.model["start"], random.initialize) == ("random", "runs/studies/homonyms_fields")
    last = by_arm["without_prediction"]["prediction"].settings
    assert (last.loss["prediction"], last.loss["labels"]) == (0.0, 1.0)
    whole = by_arm["tinybert"]["prediction"].settings
    assert last.data.settings["train"] != whole.data.settings["train"]
