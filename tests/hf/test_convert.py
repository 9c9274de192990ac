"""Weights go from Hugging Face's form to ours and back without a changed bit."""

import filecmp

import jax
import numpy as np
import pytest

from t5x_like import convert
from t5x_like.pretrained import from_pretrained


def run(*arguments):
    convert.main([f"--{name}={value}" for name, value in arguments])


def test_a_folder_comes_back_from_a_checkpoint_bitwise(v1_1, models, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    run(("from", v1_1.folder), ("to", ours), ("format", "t5x_like"))
    checkpoint, model = from_pretrained(ours), models[v1_1]
    assert (checkpoint.config, checkpoint.generation) == (model.config, model.generation)
    jax.tree.map(np.testing.assert_array_equal, checkpoint.params, model.params)
    run(("from", ours), ("to", theirs), ("format", "hf"))
    model.save_pretrained(tmp_path / "direct")
    names = ["config.json", "generation_config.json", "model.safetensors"]
    same, different, _ = filecmp.cmpfiles(theirs, tmp_path / "direct", names, shallow=False)
    assert (same, different) == (names, [])


def test_the_type_of_the_weights_can_be_changed(v1_0, tmp_path):
    run(("from", v1_0.folder), ("to", tmp_path / "half"), ("dtype", "bfloat16"))
    half = sum(path.stat().st_size for path in (tmp_path / "half").glob("*.safetensors"))
    whole = sum(path.stat().st_size for path in v1_0.folder.glob("*.safetensors"))
    assert half < 0.6 * whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"from": "nowhere"}, "there is no folder nowhere"),
        ({"format": "hg"}, "--format='hg' does not exist. Did you mean 'hf'?"),
        ({"dtype": "float64"}, "--dtype='float64' does not exist. Did you mean 'bfloat16'?"),
        ({"dtype": "int8"}, "--dtype=int8 is for --format=stablehlo, not hf"),
        ({"to": "."}, "--to='.' is not empty"),
    ],
)
def test_a_mistake_is_one_line(v1_0, tmp_path, capsys, changes, message):
    arguments = {"from": v1_0.folder, "to": tmp_path / "new"} | changes
    with pytest.raises(SystemExit) as ended:
        run(*arguments.items())
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "new").exists()


def test_an_empty_folder_is_no_model(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(("from", tmp_path), ("to", tmp_path / "new"))
    assert "no checkpoint at" in capsys.readouterr().err
