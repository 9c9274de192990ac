"""Pegasus, Marian and mBART in Hugging Face's format: logits, generated tokens, the way back."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5x_like.decoding.settings import GenerationSettings
from t5x_like.hf.folder import read_json
from t5x_like.pretrained import from_pretrained
from t5x_like.pretrained.model import shift_right
from t5x_like.systems import mbart
from t5x_like.systems.pegasus import POSITIONS

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
NAMES = ("pegasus", "marian", "mbart")
# Float32 sums of two frameworks differ in their order, by 1e-6 of logits near 1; a wrong weight,
# position or epsilon moves them by 1e-2 and more.
TOLERANCE = 1e-4


class Folder:
    """One file of tests/golden/make_pegasus.py, and the folder that it froze."""

    def __init__(self, name, path):
        self.arrays = dict(np.load(GOLDEN / f"{name}.npz"))
        prefix = "weights/"
        self.weights = {
            key.removeprefix(prefix): x for key, x in self.arrays.items() if key.startswith(prefix)
        }
        self.config = json.loads(str(self.arrays["config.json"]))
        self.settings = json.loads(str(self.arrays["settings"]))
        self.source = {key: self.arrays[key] for key in ("input_ids", "attention_mask")}
        target = ("decoder_input_ids", "decoder_attention_mask")
        self.batch = self.source | {key: self.arrays[key] for key in target}
        self.model = from_pretrained(self.write(path))

    def write(self, path, *, weights=None, generation=None, **changed):
        """The folder, with other weights or settings."""
        path.mkdir(parents=True, exist_ok=True)
        save_file(self.weights if weights is None else weights, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(self.config | changed))
        own = json.loads(str(self.arrays["generation_config.json"])) | (generation or {})
        (path / "generation_config.json").write_text(json.dumps(own))
        return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: Folder(name, tmp_path_factory.mktemp(name)) for name in NAMES}


@pytest.fixture(params=NAMES)
def folder(request, folders):
    return folders[request.param]


def test_the_logits_are_those_of_pytorch_with_padding_on_either_side(folder):
    found = np.asarray(folder.model(**folder.batch).logits)
    real = folder.arrays["decoder_attention_mask"] == 1
    expected = folder.arrays["logits"]
    np.testing.assert_allclose(found[real], expected[real], atol=TOLERANCE, rtol=0)


def ours(settings):
    """The arguments of `generate`, where words of one token are suppressed tokens."""
    rest = {name: value for name, value in settings.items() if name != "bad_words_ids"}
    return rest | {"suppress_tokens": [one for (one,) in settings.get("bad_words_ids", ())]}


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2)), 3]
)
def test_what_is_generated_is_what_pytorch_generates(number, folder):
    found = folder.model.generate(**folder.source, **ours(folder.settings[number]))
    np.testing.assert_array_equal(found, folder.arrays[f"generate/{number}"])


def test_a_folder_s_own_bad_words_are_not_generated(folders, tmp_path):
    marian, settings = folders["marian"], folders["marian"].settings[3]
    path = marian.write(tmp_path / "in", generation=settings)
    model = from_pretrained(path)
    assert model.generation.suppress_tokens == [*range(30, 60), 73]
    model.save_pretrained(tmp_path / "out")
    assert from_pretrained(tmp_path / "out").generation == model.generation
    end = [[marian.config["eos_token_id"]], [30]]  # which Hugging Face never bans
    path = marian.write(tmp_path / "in", generation={"bad_words_ids": end})
    assert from_pretrained(path).generation.suppress_tokens == [30]
    path = marian.write(tmp_path / "in", generation={"suppress_tokens": "30"})
    with pytest.raises(ValueError, match="suppress_tokens='30'; allowed: a list of tokens"):
        from_pretrained(path)


def test_a_folder_is_written_as_it_was_read(folder, tmp_path):
    folder.model.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    computed = () if folder.model.system == "mbart" else POSITIONS
    expected = {key: x for key, x in folder.weights.items() if key not in computed}
    assert written.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(written[name], tensor, err_msg=name)
    found = read_json(tmp_path / "config.json")
    dropouts = {"attention_dropout", "activation_dropout"}  # one rate here for all three
    shared = (found.keys() & folder.config.keys()) - dropouts
    assert {key: found[key] for key in shared} == {key: folder.config[key] for key in shared}
    assert {"architectures", "decoder_ffn_dim", "decoder_start_token_id"} <= shared
    again = from_pretrained(tmp_path)
    assert (again.config, again.generation) == (folder.model.config, folder.model.generation)


def test_the_tables_of_folders_are_the_sines_and_cosines_that_are_computed(folders):
    pegasus = folders["pegasus"]
    entrance = pegasus.model.module.make_encoder().make_entrance()
    found = entrance.make_positions()(None, length=40)[0]
    for name in POSITIONS:
        np.testing.assert_allclose(found, pegasus.weights[name], atol=1e-5)


def test_an_mbart_without_a_start_begins_as_hugging_face_does(folders, tmp_path):
    path = folders["mbart"].write(tmp_path, decoder_start_token_id=None)
    (path / "generation_config.json").unlink()
    assert from_pretrained(path).generation.decoder_start_token_id == 0


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("pegasus", {"activation_function": "tanh"}, "activation_function='tanh'; allowed: 'relu'"),
        ("pegasus", {"decoder_attention_heads": 5}, "a multiple of decoder_attention_heads"),
        ("pegasus", {"normalize_before": False}, "normalize_before=False; allowed: True"),
        ("marian", {"decoder_vocab_size": 80}, "decoder_vocab_size=80; allowed: 74, None"),
        (
            "marian",
            {"share_encoder_decoder_embeddings": False},
            "share_encoder_decoder_embeddings=False; allowed: True",
        ),
        ("mbart", {"tie_word_embeddings": False}, "tie_word_embeddings=False; allowed: True"),
        ("mbart", {"static_position_embeddings": True}, "static_position_embeddings=True; allowed"),
    ],
)
def test_what_is_not_supported_is_refused(name, changed, message, folders, tmp_path):
    with pytest.raises(ValueError, match=message):
        from_pretrained(folders[name].write(tmp_path, **changed))


def test_the_decoder_of_an_mbart_begins_with_the_language_of_the_labels():
    # `shift_tokens_right` of transformers' modeling_mbart moves the last token to the front.
    settings = GenerationSettings(decoder_start_token_id=2, pad_token_id=1)
    labels = np.array([[63, 67, 2, 91, -100], [48, 40, 41, 2, 92]], np.int32)
    assert mbart.MultilingualBart.language_last
    found = shift_right(labels, settings, language_last=True)
    assert found.tolist() == [[91, 63, 67, 2, 91], [92, 48, 40, 41, 2]]
    assert shift_right(labels, settings)[:, 0].tolist() == [2, 2]
