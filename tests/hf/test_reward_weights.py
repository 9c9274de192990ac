"""Reward models in Hugging Face's form: their rewards, the way back, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5x_like.hf.folder import read_json
from t5x_like.pretrained import from_pretrained

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def golden(request):
    return request.param, dict(np.load(GOLDEN / f"reward_{request.param}.npz"))


def weights(arrays):
    return {k.removeprefix("weights/"): v for k, v in arrays.items() if k.startswith("weights/")}


def write(folder, arrays, **changes):
    save_file(weights(arrays), folder / "model.safetensors")
    config = json.loads(str(arrays["config.json"])) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def model(golden, tmp_path_factory):
    return from_pretrained(write(tmp_path_factory.mktemp(golden[0]), golden[1]))


def test_a_reward_model_computes_what_pytorch_does(golden, model):
    system, arrays = golden
    assert (model.system, model.config["trunk"]["system"]) == ("reward_model", system)
    found = model(arrays["input_ids"], arrays["attention_mask"]).logits
    # As for decoders: float32 sums in another order differ by 1e-6.
    np.testing.assert_allclose(found, arrays["rewards"], atol=1e-4, rtol=0)


def test_a_reward_model_is_written_as_it_was_read(golden, model, tmp_path):
    _, arrays = golden
    model.save_pretrained(tmp_path)
    written, read = load_file(tmp_path / "model.safetensors"), weights(arrays)
    assert written.keys() == read.keys()
    for name, tensor in read.items():
        np.testing.assert_array_equal(written[name], tensor, err_msg=name)
    config, before = read_json(tmp_path / "config.json"), json.loads(str(arrays["config.json"]))
    assert config["architectures"] == before["architectures"]
    assert (len(config["id2label"]), config["pad_token_id"]) == (1, before["pad_token_id"])
    again = from_pretrained(tmp_path)
    assert again.config == model.config


def test_a_classifier_of_more_labels_is_refused(golden, tmp_path):
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}, "num_labels": 3}
    with pytest.raises(ValueError, match=r"has num_labels, .*=3; allowed: 1"):
        from_pretrained(write(tmp_path, golden[1], **labels))


def test_shifted_rewards_are_not_written(model, tmp_path):
    model = type(model)(
        model.module, model.params, system=model.system, config=model.config | {"shift": 0.5}
    )
    with pytest.raises(ValueError, match=r"model\.shift=0\.5: .* supports only 0\.0"):
        model.save_pretrained(tmp_path)
