"""BART in Hugging Face's format: outputs, generated tokens, heads, and the way back."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5x_like.hf.folder import read_json
from t5x_like.pretrained import from_pretrained

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "bart.npz"
HEADS = ("classification", "question_answering", "features")
# Float32 sums of two frameworks differ in their order, by 1e-6 of logits near 5; a wrong weight,
# position or epsilon moves them by 1e-2 and more.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def arrays():
    return dict(np.load(GOLDEN))


def group(arrays, name):
    prefix = f"{name}/"
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def write(arrays, folder, *, weights=None, head="", **changed):
    """The folder, with other weights or settings (None leaves one out), or under another head."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = group(arrays, "weights") if weights is None else weights
    if head:
        tensors = {k: v for k, v in tensors.items() if k != "final_logits_bias"}
        tensors |= group(arrays, f"{head}/weights")
    if head == "features":
        tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads(str(arrays[f"{head}/config.json".lstrip("/")])) | changed
    config = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(str(arrays["generation_config.json"]))
    return folder


@pytest.fixture(scope="module")
def model(arrays, tmp_path_factory):
    return from_pretrained(write(arrays, tmp_path_factory.mktemp("bart")))


def batch(arrays, *, rows=4):
    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    return {name: arrays[name][:rows] for name in names}


def source(arrays, *, rows=4):
    return {name: arrays[name][:rows] for name in ("input_ids", "attention_mask")}


def test_the_logits_and_the_loss_are_those_of_pytorch(arrays, model):
    real = arrays["decoder_attention_mask"] == 1
    found = np.asarray(model(**batch(arrays)).logits)[real]
    np.testing.assert_allclose(found, arrays["logits"][real], atol=TOLERANCE, rtol=0)
    loss = model(**source(arrays), labels=arrays["labels"]).loss
    np.testing.assert_allclose(loss, arrays["loss"], rtol=1e-5)


def test_a_mass_with_the_epsilon_of_bart_is_a_bart(arrays, model, tmp_path):
    mass = from_pretrained(write(arrays, tmp_path / "in"), system="mass")
    found, expected = mass(**batch(arrays)).logits, model(**batch(arrays)).logits
    np.testing.assert_allclose(found, expected, atol=1e-5)
    mass.save_pretrained(tmp_path / "out")
    written, read = load_file(tmp_path / "out" / "model.safetensors"), group(arrays, "weights")
    assert written.keys() == read.keys()
    for name, tensor in read.items():
        unused = 2 if "positions" in name else 0  # rows before that of the first position
        np.testing.assert_array_equal(written[name][unused:], tensor[unused:], err_msg=name)
        assert not written[name][:unused].any()
    again = from_pretrained(tmp_path / "out")
    assert again.system == "bart"
    np.testing.assert_array_equal(again(**batch(arrays)).logits, expected)
    mass.config["norm_epsilon"] = 1e-12
    with pytest.raises(ValueError, match="norm_epsilon=1e-12: Hugging Face's class supports only"):
        mass.save_pretrained(tmp_path / "other")


def test_what_is_generated_is_what_pytorch_generates(arrays, model):
    for number, settings in enumerate(json.loads(str(arrays["settings"]))):
        found = model.generate(**source(arrays), **settings)
        expected = arrays[f"generate/{number}"]
        np.testing.assert_array_equal(found, expected, err_msg=str(settings))


def test_the_folders_own_settings_force_the_first_token_and_the_last(arrays, tmp_path):
    folder = write(arrays, tmp_path)
    own = json.loads(str(arrays["generation_config.json"]))
    own |= {"forced_bos_token_id": 0, "forced_eos_token_id": 2, "max_length": 9}
    (folder / "generation_config.json").write_text(json.dumps(own))
    tokens = from_pretrained(folder).generate(**source(arrays))
    assert (tokens[:, :2] == [2, 0]).all()
    assert (tokens == 2).sum(axis=1).min() >= 2
    assert tokens.shape[1] <= 9


@pytest.mark.parametrize("head", HEADS)
def test_a_head_predicts_what_pytorch_does(head, arrays, tmp_path):
    reader = from_pretrained(write(arrays, tmp_path / "in", head=head))
    assert reader.config["head"] == head
    # Padded on the left, Hugging Face's decoder reads the padding as text.
    out = reader(**source(arrays, rows=3))
    real = arrays["attention_mask"][:3] == 1
    names = {"logits": "logits", "hidden": "last_hidden_state"}
    names |= {name: name for name in ("start_logits", "end_logits")}
    compared = 0
    for ours, theirs in names.items():
        if f"{head}/{theirs}" in arrays:
            found, expected = np.asarray(getattr(out, ours)), arrays[f"{head}/{theirs}"]
            if found.shape[1] == real.shape[1]:
                found, expected = found[real], expected[real]
            np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0, err_msg=ours)
            compared += 1
    assert compared
    reader.save_pretrained(tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    read = load_file(tmp_path / "in" / "model.safetensors")
    if head == "features":  # Hugging Face reads both names
        written = {name.removeprefix("model."): tensor for name, tensor in written.items()}
    assert written.keys() == read.keys()
    for name, tensor in read.items():
        np.testing.assert_array_equal(written[name], tensor, err_msg=name)
    config = read_json(tmp_path / "out" / "config.json")
    theirs = json.loads(str(arrays[f"{head}/config.json"]))
    assert config["architectures"] == theirs["architectures"]


def test_a_class_does_not_depend_on_the_side_of_the_padding(arrays, tmp_path):
    reader = from_pretrained(write(arrays, tmp_path, head="classification"))
    tokens = arrays["input_ids"][2, :5]
    alone, padded = (
        reader(input_ids=np.pad(tokens, (0, size))[None], attention_mask=mask).logits
        for size, mask in ((0, None), (6, np.arange(11)[None] < 5))
    )
    # Sums over more keys, of weight 0, in another order.
    np.testing.assert_allclose(alone, padded, atol=1e-5)
    tokens = np.pad(tokens, (6, 0), constant_values=1)
    left = reader(input_ids=tokens[None], attention_mask=np.arange(11)[None] >= 6).logits
    # Other positions, so other logits; but nothing of the padding.
    other = np.where(np.arange(11) < 6, 9, tokens)
    again = reader(input_ids=other[None], attention_mask=np.arange(11)[None] >= 6).logits
    np.testing.assert_allclose(again, left, atol=1e-5)


def test_what_is_saved_is_bitwise_what_was_read(arrays, model, tmp_path):
    model.save_pretrained(tmp_path)
    written, read = load_file(tmp_path / "model.safetensors"), group(arrays, "weights")
    assert written.keys() == read.keys()
    for name, tensor in read.items():
        np.testing.assert_array_equal(written[name], tensor, err_msg=name)
    config = json.loads(str(arrays["config.json"]))
    mine = read_json(tmp_path / "config.json")
    dropouts = {"attention_dropout", "activation_dropout"}  # one rate here for all
    for name in (mine.keys() & config.keys()) - dropouts:
        assert mine[name] == config[name], name
    again = from_pretrained(tmp_path)
    assert again.config == model.config | {"labels": 2}  # of no use to this head
    assert again.generation == model.generation


def test_a_folder_without_a_bias_of_the_logits_has_none(arrays, tmp_path):
    weights = group(arrays, "weights")
    bias = weights.pop("final_logits_bias")
    model = from_pretrained(write(arrays, tmp_path, weights=weights))
    assert "lm_head" not in model.params
    real = arrays["decoder_attention_mask"] == 1
    found = np.asarray(model(**batch(arrays)).logits + bias)[real]
    np.testing.assert_allclose(found, arrays["logits"][real], atol=TOLERANCE, rtol=0)


def test_copies_of_the_embedding_are_no_new_weights(arrays, tmp_path):
    weights = group(arrays, "weights")
    names = ("model.encoder.embed_tokens.weight", "lm_head.weight")
    weights |= dict.fromkeys(names, weights["model.shared.weight"])
    from_pretrained(write(arrays, tmp_path, weights=weights))
    weights["lm_head.weight"] = weights["lm_head.weight"] + 1
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from model\.shared\.weight"):
        from_pretrained(write(arrays, tmp_path, weights=weights))


def test_another_head_is_drawn_and_the_rest_is_read_both_ways(arrays, model, tmp_path):
    folder = write(arrays, tmp_path / "generation")
    reader = from_pretrained(folder, head="classification", labels=4)
    assert reader(**source(arrays)).logits.shape == (4, 4)
    for part in ("token_embedder", "encoder", "decoder"):
        found = reader.params[part]["entrance" if part != "token_embedder" else "embedding"]
        expected = model.params[part]["entrance" if part != "token_embedder" else "embedding"]
        assert str(found) == str(expected)
    back = from_pretrained(write(arrays, tmp_path / "class", head="classification"))
    again = from_pretrained(tmp_path / "class", head="generation", logits_bias=True)
    np.testing.assert_array_equal(again.params["lm_head"]["bias"], 0)
    assert "head" in back.params
    assert "head" not in again.params


def test_a_translators_new_encoder_is_drawn_and_the_rest_is_read_layer_by_layer(arrays, tmp_path):
    folder = write(arrays, tmp_path)
    model = from_pretrained(folder, head="translation", loop="unroll", source_layers=1)
    read = group(arrays, "weights")
    for layer in range(3):
        kernel = model.params["encoder"]["layers"][f"layer_{layer}"]["feed_forward"]["wi"]["kernel"]
        np.testing.assert_array_equal(kernel, read[f"model.encoder.layers.{layer}.fc1.weight"].T)
    new = model.params["source"]["encoder"]["layers"]["layer_0"]["feed_forward"]["wi"]["kernel"]
    assert new.shape == (24, 28)
    assert 0.015 < np.std(new) < 0.025
    with pytest.raises(ValueError, match="lacks"):
        from_pretrained(folder, head="generation", decoder_layers=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation_function": "relu"}, "activation_function='relu'; allowed: 'gelu'"),
        ({"scale_embedding": True}, "scale_embedding=True; allowed: False"),
        ({"decoder_attention_heads": 5}, "allowed: a multiple of decoder_attention_heads, which"),
        ({"decoder_start_token_id": 0}, "eos_token_id=2; allowed: 0"),
        ({"encoder_layers": None}, "has no encoder_layers"),
    ],
)
def test_settings_that_this_bart_does_not_have_are_named(change, message, arrays, tmp_path):
    with pytest.raises(ValueError, match=message):
        from_pretrained(write(arrays, tmp_path, **change))


@pytest.mark.parametrize("head", ["translation", "tagging"])
def test_heads_that_hugging_face_has_not_are_named(head, arrays, tmp_path):
    model = from_pretrained(write(arrays, tmp_path / "in"), head=head, source_layers=1)
    with pytest.raises(ValueError, match=f"no BART with model.head={head!r}"):
        model.save_pretrained(tmp_path / "out")
