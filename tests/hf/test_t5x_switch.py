"""T5X's checkpoints of flaxformer's Switch Transformer: what they are here, and the way back."""

import re

import jax
import numpy as np
import pytest

from t5x_like.config import RunSettings
from t5x_like.experiment import optimizer_state
from t5x_like.experiment.run import Run
from t5x_like.pretrained import from_pretrained, t5x
from t5x_like.pretrained.t5x_files import StoredArrays
from tests.hf.conftest import Golden
from tests.hf.test_t5x_checkpoints import in_folders, in_the_file, t5x_name

TOLERANCE = 1e-4  # as in test_switch_weights.py
# What no checkpoint of T5X holds: how many tokens an expert takes.
SLOTS = ("expert_capacity", "group_size", "dispatch", "expert_dropout", "dropout")


def arrays_of(golden):
    """A golden's weights as flaxformer has them: all experts of a layer in one array."""
    arrays, experts = {}, {}
    for name, weight in golden.weights.items():
        sparse = re.fullmatch(r"(\w+)\.block\.(\d+)\.layer\.\d\.mlp\.(.+)\.weight", name)
        if not sparse:
            kept = name == "shared.weight"
            arrays[t5x_name(name)] = np.ascontiguousarray(weight if kept else weight.T)
            continue
        tower, layer, what = sparse.groups()
        here = f"{tower}/layers_{layer}/mlp"
        if expert := re.fullmatch(r"experts\.expert_(\d+)\.(\w+)", what):
            own = experts.setdefault(f"{here}/expert/{expert[2]}/kernel", {})
            own[int(expert[1])] = weight.T
        else:
            theirs = what.replace("router.classifier", "router/router_weights/w")
            arrays[f"{here}/{theirs}/kernel"] = np.ascontiguousarray(weight.T)
    stacked = {name: np.stack([own[n] for n in sorted(own)]) for name, own in experts.items()}
    return arrays | stacked


@pytest.fixture(
    scope="module", params=["switch", pytest.param("switch_all", marks=pytest.mark.slow)]
)
def golden(request, tmp_path_factory):
    return Golden(request.param, tmp_path_factory.mktemp(request.param))


def test_it_is_the_network_of_hugging_faces_folder_both_ways(golden, tmp_path):
    expected = from_pretrained(golden.folder)
    arrays = arrays_of(golden)
    slots = {name: expected.config[name] for name in SLOTS}
    model = from_pretrained(f"t5x:{in_folders(tmp_path / 'in', arrays)}", **slots)
    assert (model.system, model.config) == ("switch", expected.config)
    jax.tree.map(np.testing.assert_array_equal, model.params, expected.params)
    assert golden.error(model(**golden.batch).logits) < TOLERANCE
    t5x.save(model.params, tmp_path / "out", system="switch", config=model.config)
    again = StoredArrays(tmp_path / "out" / "checkpoint_0")
    assert set(again.names) == set(arrays)
    for name, array in arrays.items():
        whole = tuple(slice(0, n) for n in array.shape)
        np.testing.assert_array_equal(again.read(name, whole), array, err_msg=name)


def test_other_patterns_of_sparse_layers_are_refused(golden, tmp_path):
    last = f"encoder/layers_{golden.config['num_layers'] - 1}/mlp/expert/"
    arrays = {name: x for name, x in arrays_of(golden).items() if not name.startswith(last)}
    with pytest.raises(ValueError, match="or every second one, the same"):
        from_pretrained(in_the_file(tmp_path / "fewer", arrays))


def test_its_factored_moments_are_refused(golden, tmp_path):
    folder = in_the_file(tmp_path, arrays_of(golden))
    run = Run(RunSettings(initialize=str(folder), optimizer={"name": "adafactor"}))
    with pytest.raises(ValueError, match="whose optimizer state is read only for Adam"):
        optimizer_state.find(run)
    assert optimizer_state.find(run.replace(optimizer={"name": "adamw"})).system == "switch"


def test_another_router_is_not_written(tmp_path):
    config = {"architecture": "encoder_decoder", "d_adapter": 0, "scale_tied_logits": True}
    with pytest.raises(ValueError, match="router='top2'"):
        t5x.save({}, tmp_path, system="switch", config=config | {"router": "top2"})
