"""Folders of multiple choice, of T5's encoder and of a BART of unlike sides: written as read."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5x_like.pretrained import from_pretrained
from tests.golden import drawn_weights

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "mutations.npz"
CHOICES = [f"{name}_choices" for name in ("bert", "roberta", "albert", "electra", "distilbert")]


@pytest.mark.parametrize("name", ["t5_encoder", "bart_unequal", *CHOICES])
def test_a_folder_is_written_as_it_was_read(name, tmp_path):
    folder = json.loads(str(np.load(GOLDEN)[f"{name}/folder.json"]))
    read = {key: drawn_weights.draw(key, shape) for key, shape in folder["tensors"].items()}
    save_file(read, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(folder["config"]))
    from_pretrained(tmp_path).save_pretrained(tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == read.keys()
    for key, tensor in read.items():
        np.testing.assert_array_equal(written[key], tensor, err_msg=key)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    dropouts = {"attention_dropout", "activation_dropout"}  # one rate here for all of BART's
    shared = (config.keys() & folder["config"].keys()) - dropouts
    assert {key: config[key] for key in shared} == {key: folder["config"][key] for key in shared}
    assert {"architectures", "model_type"} <= shared
    assert len(shared) > 10
