"""Decoders in Hugging Face's form: what they compute and generate, and the way back."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5x_like.hf.folder import read_json
from t5x_like.pretrained import from_pretrained

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SYSTEMS = (
    "gpt",
    "gpt2",
    "llama",
    "llama_3",
    "mistral",
    "qwen2",
    "gemma",
    "mixtral",
    "opt",
    pytest.param("opt_350m", marks=pytest.mark.slow),
    "gpt_neox",
    pytest.param("gpt_neox_serial", marks=pytest.mark.slow),
    "gptj",
)
# Float32 sums of two frameworks differ in their order, by 1e-6 of outputs near 5; a wrong weight,
# epsilon or activation moves them by 1e-2 and more.
TOLERANCE = 1e-4


@functools.cache
def arrays(system):
    return dict(np.load(GOLDEN / f"{system}.npz"))


def group(system, name):
    prefix = f"{name}/"
    return {
        key.removeprefix(prefix): array
        for key, array in arrays(system).items()
        if key.startswith(prefix)
    }


@pytest.fixture(scope="module", params=SYSTEMS)
def system(request):
    return request.param


@pytest.fixture(scope="module")
def model(system, tmp_path_factory):
    folder = tmp_path_factory.mktemp(system)
    save_file(group(system, "weights"), folder / "model.safetensors")
    for file in ("config.json", "generation_config.json"):
        (folder / file).write_text(str(arrays(system)[file]))
    return from_pretrained(folder)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_decoder_computes_what_pytorch_does(system, model, side):
    batch = group(system, side)
    expected = batch.pop("logits")
    real = batch["attention_mask"] == 1
    np.testing.assert_allclose(
        np.asarray(model(**batch).logits)[real], expected[real], atol=TOLERANCE, rtol=0
    )


def check_generation(system, model, number):
    batch, request = group(system, "left"), json.loads(str(arrays(system)["generations.json"]))
    found = model.generate(batch["input_ids"], batch["attention_mask"], **request[number])
    np.testing.assert_array_equal(found, arrays(system)[f"generation/{number}"])


def test_a_decoder_generates_what_pytorch_does(system, model):
    check_generation(system, model, 0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_a_decoder_s_beams_are_pytorch_s(system, model, number):
    check_generation(system, model, number)


def test_a_decoder_is_written_as_it_was_read(system, model, tmp_path):
    model.save_pretrained(tmp_path)
    written, read = load_file(tmp_path / "model.safetensors"), group(system, "weights")
    assert written.keys() == read.keys()
    for name, tensor in read.items():
        np.testing.assert_array_equal(written[name], tensor, err_msg=name)
    config = json.loads(str(arrays(system)["config.json"]))
    for name, value in read_json(tmp_path / "config.json").items():
        if name in config and not name.endswith("token_id"):
            assert config[name] == value, name
