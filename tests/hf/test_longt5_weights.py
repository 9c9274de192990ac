"""LongT5 in Hugging Face's format: logits, generated tokens, and the way back."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from t5x_like.hf.folder import read_json
from t5x_like.pretrained import from_pretrained
from tests.hf.conftest import Golden

# As for T5's folders; with the other attention the logits move by 0.1 and more.
TOLERANCE = 1e-4
ATTENTIONS = {"longt5_local": "local", "longt5_tglobal": "transient_global"}


@pytest.fixture(scope="module")
def goldens(tmp_path_factory):
    return {name: Golden(name, tmp_path_factory.mktemp(name)) for name in ATTENTIONS}


@pytest.fixture(scope="module")
def models(goldens):
    return {name: from_pretrained(golden.folder) for name, golden in goldens.items()}


@pytest.fixture(params=ATTENTIONS)
def name(request):
    return request.param


@pytest.fixture
def golden(name, goldens):
    return goldens[name]


@pytest.fixture
def model(name, models):
    return models[name]


def test_the_logits_are_those_of_pytorch(name, golden, model):
    assert model.system == "longt5"
    assert model.config["encoder_attention"] == ATTENTIONS[name]
    assert (model.config["local_radius"], model.config["global_block"]) == (4, 4)
    assert golden.error(model(**golden.batch).logits) < TOLERANCE


def test_what_is_generated_is_what_pytorch_generates(golden, model):
    for number, settings in enumerate(json.loads(str(golden.arrays["settings"]))):
        found = model.generate(**golden.source, **settings)
        np.testing.assert_array_equal(found, golden.arrays[f"generate/{number}"], str(settings))


def test_the_global_tokens_count(goldens, models):
    golden, model = goldens["longt5_tglobal"], models["longt5_tglobal"]
    params = {**model.params, "encoder": dict(model.params["encoder"])}
    table = params["encoder"]["extra"]["relative_position_bias"]["embedding"]
    # A bias that hides the global tokens. The row of 3 tokens has none.
    hidden = {"relative_position_bias": {"embedding": np.full_like(table, -1e4)}}
    params["encoder"]["extra"] = hidden
    batch = {
        "encoder_input_tokens": golden.batch["input_ids"],
        "encoder_segment_ids": golden.batch["attention_mask"],
        "decoder_input_tokens": golden.batch["decoder_input_ids"],
        "decoder_segment_ids": golden.batch["decoder_attention_mask"],
    }
    found = np.asarray(model.module.apply({"params": params}, batch))
    moved = np.abs(found - golden.arrays["logits"]).max(axis=-1)
    assert (moved[[0, 1, 3], 0] > 0.05).all()
    assert moved[2, 0] < TOLERANCE


def test_a_folder_without_an_output_layer_is_tied(goldens, tmp_path):
    golden = goldens["longt5_local"]
    weights = {name: w for name, w in golden.weights.items() if name != "lm_head.weight"}
    scaled = {"tie_word_embeddings": True, "scale_decoder_outputs": None}
    model = from_pretrained(golden.write(tmp_path, weights=weights, **scaled))
    assert golden.error(model(**golden.batch).logits, expected="tied_logits") < TOLERANCE
    # LongT5Model, which has no output layer: its states are what a tied layer without scale reads.
    folder = golden.write(tmp_path / "base", weights=weights, architectures=["LongT5Model"])
    logits = from_pretrained(folder)(**golden.batch).logits
    golden.arrays["products"] = golden.arrays["states"] @ weights["shared.weight"].T
    assert golden.error(logits, expected="products") < 10 * TOLERANCE  # sums of 20 of 10 x the size


def test_an_encoder_alone_has_the_states_that_the_decoder_reads(goldens, models, tmp_path):
    golden, model = goldens["longt5_tglobal"], models["longt5_tglobal"]
    weights = {k: w for k, w in golden.weights.items() if k.startswith(("encoder.", "shared."))}
    own = {"architectures": ["LongT5EncoderModel"], "is_encoder_decoder": False}
    encoder = from_pretrained(golden.write(tmp_path, weights=weights, **own))
    assert encoder.config["architecture"] == "encoder"
    rows = {
        "encoder_input_tokens": golden.batch["input_ids"],
        "encoder_segment_ids": golden.batch["attention_mask"],
    }
    expected, _ = model.module.apply({"params": model.params}, rows, method=model.module.encode)
    found = encoder(**golden.source).hidden
    real = golden.batch["attention_mask"] == 1
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)


def test_a_folder_is_written_as_it_was_read(golden, model, tmp_path):
    model.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == golden.weights.keys()
    for name, weight in golden.weights.items():
        np.testing.assert_array_equal(written[name], weight, err_msg=name)
    found = read_json(tmp_path / "config.json")
    shared = found.keys() & golden.config.keys()
    assert {key: found[key] for key in shared} == {key: golden.config[key] for key in shared}
    assert {"encoder_attention_type", "local_radius", "global_block_size"} <= shared
    assert found["architectures"] == ["LongT5ForConditionalGeneration"]
    assert from_pretrained(tmp_path).config == model.config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder_attention_type": "global"}, "encoder_attention_type='global'; allowed: 'local'"),
        ({"local_radius": 0}, "local_radius=0; allowed: "),
        ({"global_block_size": 0}, "global_block_size=0; allowed: "),
        ({"feed_forward_proj": "gated-silu"}, "feed_forward_proj='gated-silu'; allowed: 'relu'"),
    ],
)
def test_what_is_not_supported_is_refused(change, message, goldens, tmp_path):
    with pytest.raises(ValueError, match=message):
        from_pretrained(goldens["longt5_tglobal"].write(tmp_path, **change))
