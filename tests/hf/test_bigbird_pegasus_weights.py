"""BigBird-Pegasus in Hugging Face's format: logits, generated tokens, and the way back."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5x_like.hf.folder import read_json
from t5x_like.pretrained import from_pretrained

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "bigbird_pegasus.npz"
KINDS = {"block_sparse": "window|random|global", "original_full": "all"}
# Float32 sums of two frameworks differ in their order, by 1e-6 of logits near 1; a wrong weight,
# position or epsilon moves them by 1e-2 and more.
TOLERANCE = 1e-4
END = 1


@pytest.fixture(scope="module")
def arrays():
    return dict(np.load(GOLDEN))


def group(arrays, name):
    prefix = f"{name}/"
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def write(arrays, folder, *, weights="weights", **changed):
    """The folder, with other weights or settings."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(group(arrays, weights), folder / "model.safetensors")
    config = json.loads(str(arrays["config.json"])) | changed
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(str(arrays["generation_config.json"]))
    return folder


@pytest.fixture(scope="module")
def models(arrays, tmp_path_factory):
    folders = tmp_path_factory.mktemp("bigbird_pegasus")
    return {
        kind: from_pretrained(write(arrays, folders / kind, attention_type=kind)) for kind in KINDS
    }


def batch(arrays):
    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    return {name: arrays[name] for name in names}


def source(arrays):
    return {name: arrays[name] for name in ("input_ids", "attention_mask")}


def error(found, expected, arrays):
    return np.abs(np.asarray(found) - expected)[arrays["decoder_attention_mask"] == 1].max()


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_pytorch_with_padding_on_either_side(kind, arrays, models):
    model = models[kind]
    assert model.config["attention_parts"] == KINDS[kind]
    expected = arrays[f"{kind}/logits"]
    assert error(model(**batch(arrays)).logits, expected, arrays) < TOLERANCE
    other = next(other for other in KINDS if other != kind)
    assert error(arrays[f"{other}/logits"], expected, arrays) > 0.1


def test_the_loss_is_that_of_pytorch(arrays, models):
    loss = models["block_sparse"](**source(arrays), labels=arrays["labels"]).loss
    np.testing.assert_allclose(loss, arrays["loss"], rtol=1e-5)


@pytest.mark.parametrize(("kind", "number"), [(kind, n) for kind in KINDS for n in range(2)])
def test_what_is_generated_is_what_pytorch_generates(kind, number, arrays, models):
    settings = json.loads(str(arrays["settings"]))[number]
    found = models[kind].generate(**source(arrays), **settings)
    expected = arrays[f"{kind}/generate/{number}"]
    # Where padding has id 0, Hugging Face's beams repeat the end.
    ended = np.cumsum(expected == END, axis=1) - (expected == END) > 0
    np.testing.assert_array_equal(found, np.where(ended, 0, expected))


def test_attention_may_have_biases(arrays, tmp_path):
    model = from_pretrained(write(arrays, tmp_path, weights="biased/weights", use_bias=True))
    assert error(model(**batch(arrays)).logits, arrays["biased/logits"], arrays) < TOLERANCE


def test_a_folder_is_written_as_it_was_read(arrays, models, tmp_path):
    models["block_sparse"].save_pretrained(tmp_path)
    written, read = load_file(tmp_path / "model.safetensors"), group(arrays, "weights")
    assert written.keys() == read.keys()
    for name, tensor in read.items():
        np.testing.assert_array_equal(written[name], tensor, err_msg=name)
    theirs = json.loads(str(arrays["config.json"]))
    dropouts = {"attention_dropout", "activation_dropout"}  # one rate here for all three
    found = read_json(tmp_path / "config.json")
    shared = (found.keys() & theirs.keys()) - dropouts
    assert {key: found[key] for key in shared} == {key: theirs[key] for key in shared}
    assert {"architectures", "attention_type", "use_bias", "decoder_start_token_id"} <= shared


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"decoder_ffn_dim": 20}, "decoder_ffn_dim=20; allowed: 28"),
        ({"activation_function": "relu"}, "activation_function='relu'; allowed: 'gelu_new', "),
        ({"attention_type": "dense"}, "attention_type='dense'; allowed: 'block_sparse', "),
        ({"scale_embedding": False}, "scale_embedding=False; allowed: True"),
    ],
)
def test_what_is_not_supported_is_refused(changed, message, arrays, tmp_path):
    with pytest.raises(ValueError, match=message):
        from_pretrained(write(arrays, tmp_path, **changed))
