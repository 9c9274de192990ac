"""A folder with any one setting changed is read as PyTorch reads it, or refused in one line."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from t5x_like import systems
from t5x_like.pretrained import Pretrained, from_pretrained
from tests.golden import drawn_weights

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "mutations.npz"
# Float32 sums of two frameworks differ in their order, by 1e-6 of outputs near 5; a wrong weight,
# epsilon or activation moves them by 1e-2 and more.
TOLERANCE = 1e-4
MISSING = "(missing)"


@functools.cache
def arrays():
    return dict(np.load(GOLDEN))


NAMES = [key.removesuffix("/folder.json") for key in arrays() if key.endswith("/folder.json")]


@functools.cache
def stored(name):
    """The config.json, the shapes of the tensors, and the changes with what they lead to."""
    return json.loads(str(arrays()[f"{name}/folder.json"]))


def changed(name, key, value):
    settings = {**stored(name)["config"], key: value}
    return {k: v for k, v in settings.items() if v != MISSING}


def outcome(call, *arguments, **settings):
    """What a call returns, or the message of its ValueError, which has one line."""
    try:
        return call(*arguments, **settings)
    except ValueError as error:
        message = str(error)
    assert "\n" not in message
    return message


def read(name, config):
    """The system and the settings of a config.json, but for dropout, which only trains."""
    if not isinstance(config.get("model_type"), str):
        return "no model_type"
    readers = outcome(systems.hugging_face_readers, config["model_type"])
    if isinstance(readers, str):
        return readers
    record = systems.hugging_face_format(readers[0])
    found = outcome(record.from_config, config, names=stored(name)["tensors"])
    if isinstance(found, str):
        return found
    found = {k: v for k, v in found.items() if "dropout" not in k and k not in NOT_OF_THE_NETWORK}
    return json.dumps([readers[0], found], sort_keys=True)


# Settings of training and of generation.
NOT_OF_THE_NETWORK = {"jitter", "bos_id", "eos_id"}


@pytest.mark.parametrize("name", NAMES)
def test_a_change_that_is_ignored_has_no_effect_in_pytorch(name):
    same = read(name, stored(name)["config"])
    for key, value, found in stored(name)["changes"]:
        if read(name, changed(name, key, value)) == same and found != "error":
            assert found != "random", (key, value)
            output, expected = (arrays()[f"{name}/{number}"] for number in (found, 0))
            np.testing.assert_allclose(
                output, expected, atol=TOLERANCE, rtol=0, err_msg=f"{key}={value!r}"
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_change_is_read_as_pytorch_reads_it_or_refused(name, tmp_path):
    tensors = {
        key: drawn_weights.draw(key, shape) for key, shape in stored(name)["tensors"].items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    base, sides = stored(name)["config"], stored(name)["sides"]
    outputs = {}
    for key, value, found in [["", None, 0], *stored(name)["changes"]]:
        config = changed(name, key, value)
        batch = drawn_weights.inputs(config, sides=sides, base=base)
        if base.get("architectures", [""])[0].endswith("ForMultipleChoice"):
            batch = {k: v[None] for k, v in batch.items()}
        program = read(name, config), *(array.tobytes() for array in batch.values())
        if program not in outputs:
            (tmp_path / "config.json").write_text(json.dumps(config))
            outputs[program] = outcome(predict, tmp_path, batch, model_type=base["model_type"])
        ours = outputs[program]
        if isinstance(ours, str) or found == "error":
            assert found != 0 or key, ours
            continue
        assert found != "random", (key, value)
        np.testing.assert_allclose(
            ours, arrays()[f"{name}/{found}"], atol=TOLERANCE, rtol=0, err_msg=f"{key}={value!r}"
        )


def predict(folder, batch, *, model_type):
    """Some numbers of a folder's outputs."""
    model = from_pretrained(folder)
    assert isinstance(model, Pretrained)
    found = vars(model(**batch))
    # The states that a next batch reads were not frozen.
    known = {k: v for k, v in found.items() if v is not None and k != "mems"}
    return drawn_weights.sample(known, model_type=model_type)
