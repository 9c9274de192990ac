"""The ids of special tokens in written folders: as a run's vocabulary or a folder has them.

The folders that are read were written by transformers 5.24 (`golden/make_mutations.py`), and
`CAN_GENERATE` is what `can_generate` of their classes returns there. The file of a run's vocabulary
has the special tokens in another order than any release.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from t5x_like import convert
from t5x_like.pretrained import from_pretrained
from tests.golden import drawn_weights
from tests.programs import tiny_encoder, tiny_writer

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "mutations.npz"
CAN_GENERATE = {
    "bert": False,
    "roberta": False,
    "bigbird": False,
    "xlnet_classification": False,
    "bart_classification": False,
    "t5_encoder": False,
    "bart": True,
    "gpt2": True,
    "marian": True,
}
WORDS = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]
IDS = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
ENCODERS = {
    **{name: {} for name in ("bert", "roberta", "xlnet", "albert", "electra", "bigbird")},
    **{name: {"head": "features"} for name in ("deberta", "deberta_v2")},
}
GENERATION = "generation_config.json"


def ids_of(path):
    return {k: v for k, v in json.loads(path.read_text()).items() if k.endswith("_token_id")}


def encoder(system, folder):
    """A run whose vocabulary has padding as token 1."""
    run = tiny_encoder.write(folder, system, words=[])
    (run / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return run


@pytest.mark.parametrize("system", ENCODERS)
def test_an_encoder_has_the_ids_of_its_vocabulary_and_no_settings_of_generation(system, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / GENERATION).write_text("{}")  # of an earlier model
    run = encoder(system, tmp_path / "run")
    from_pretrained(run, **ENCODERS[system]).save_pretrained(out)
    assert ids_of(out / "config.json") == IDS
    assert not (out / GENERATION).exists()


@pytest.mark.parametrize("name", CAN_GENERATE)
def test_a_folder_keeps_its_ids(name, tmp_path):
    folder = json.loads(str(np.load(GOLDEN)[f"{name}/folder.json"]))
    tensors = {key: drawn_weights.draw(key, shape) for key, shape in folder["tensors"].items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(folder["config"]))
    for source, form, target in (("", "hf", "out"), ("", "t5x_like", "ours"), ("ours", "hf", "2")):
        flags = [f"--from={tmp_path / source}", f"--to={tmp_path / target}", f"--format={form}"]
        convert.main(flags)
    expected = ids_of(tmp_path / "config.json")
    expected.pop("forced_eos_token_id", None)  # a setting of generation
    for out in (tmp_path / "out", tmp_path / "2"):
        assert ids_of(out / "config.json") == expected
        assert (out / GENERATION).exists() == CAN_GENERATE[name]


def test_a_decoder_has_the_end_of_its_vocabulary_and_no_padding(tmp_path):
    made = tiny_writer.settings("gpt2")
    vocabulary = tmp_path / "words"
    vocabulary.mkdir()
    pieces = {"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}
    (vocabulary / "vocab.json").write_text(json.dumps(pieces))
    (vocabulary / "merges.txt").write_text("a b\n")
    made.data.vocabulary = str(vocabulary / "vocab.json")
    model = from_pretrained(tiny_writer.write(tmp_path / "run", made))
    assert (model.generation.eos_token_id, model.generation.pad_token_id) == (3, None)
    model.save_pretrained(tmp_path / "out")
    for file in ("config.json", GENERATION):
        ids = ids_of(tmp_path / "out" / file)
        assert (ids["eos_token_id"], ids["pad_token_id"]) == (3, None)
    made.data.vocabulary = "bytes"
    assert from_pretrained(tiny_writer.write(tmp_path / "bytes", made)).generation.ends == (1,)


def test_ids_that_are_not_known_are_not_written(tmp_path):
    run = encoder("bert", tmp_path / "run")
    (run / "vocab.txt").unlink()
    from_pretrained(run).save_pretrained(tmp_path / "out")
    assert ids_of(tmp_path / "out" / "config.json") == {}
