"""Folders are read as written, whole or in shards, and damage to them is named."""

import json
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5x_like.hf.folder import TensorFiles, write_tensors
from t5x_like.hf.weight_map import Tensor
from t5x_like.pretrained import from_pretrained


def tensor(name, array):
    return Tensor(name, array.shape, array.dtype, load=lambda: array)


def cut_in_two(golden, folder):
    """The folder as two shards and an index, written by hand."""
    golden.write(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(golden.weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: golden.weights[name] for name in held}, folder / file)
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_shards_give_the_parameters_that_one_file_gives(golden, model, tmp_path):
    sharded = from_pretrained(cut_in_two(golden, tmp_path))
    jax.tree.map(np.testing.assert_array_equal, sharded.params, model.params)


def test_a_missing_or_wrong_shard_is_named(v1_0, tmp_path):
    folder = cut_in_two(v1_0, tmp_path)
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")
    with pytest.raises(ValueError, match=r"b\.safetensors lacks .*\.weight"):
        from_pretrained(folder)
    (folder / "b.safetensors").unlink()
    with pytest.raises(ValueError, match=r"index\.json lists b\.safetensors, which is not there"):
        from_pretrained(folder)


def test_a_truncated_file_is_named(v1_0, tmp_path):
    path = v1_0.write(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        from_pretrained(tmp_path)


def test_tensors_are_spread_over_files_of_the_size_asked_for(tmp_path):
    arrays = {f"t{n}": np.full((n + 1, 10), n, np.float32) for n in range(6)}
    write_tensors(tmp_path, [tensor(*one) for one in arrays.items()], max_shard_size=130)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert [path.name for path in files] == [
        f"model-0000{n}-of-00005.safetensors" for n in range(1, 6)
    ]
    assert list(load_file(files[0])) == ["t0", "t1"]  # 40 + 80 bytes
    read = TensorFiles(tmp_path)
    assert sorted(read.names) == sorted(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read.read(name), array)


def test_what_was_there_before_does_not_mix_with_what_is_written(tmp_path):
    small = [tensor("a", np.zeros(4, np.float32)), tensor("b", np.zeros(4, np.float32))]
    write_tensors(tmp_path, small, max_shard_size=16)
    write_tensors(tmp_path, small, max_shard_size=1000)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_bfloat16_tensors_are_read_and_written_exactly(tmp_path):
    array = np.arange(12).astype(ml_dtypes.bfloat16).reshape(3, 4)
    write_tensors(tmp_path, [tensor("a", array)], max_shard_size=1000)
    read = TensorFiles(tmp_path).read("a")
    assert read.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read, array)


def test_other_formats_are_refused_with_the_way_out(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "tf_model.h5").touch()
    with pytest.raises(ValueError, match=r"tf_model\.h5, which is not .*save_pretrained"):
        from_pretrained(tmp_path)
    (tmp_path / "tf_model.h5").unlink()
    with pytest.raises(ValueError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        from_pretrained(tmp_path)


def test_a_folder_that_is_not_there_is_named_with_the_nearest(tmp_path):
    (tmp_path / "t5_base").mkdir()
    with pytest.raises(ValueError, match=r"there is no folder .*t5_bse\. Did you mean 't5_base'"):
        from_pretrained(tmp_path / "t5_bse")
    with pytest.raises(ValueError, match=r"google/t5-small is not in the cache .* HF_HUB_OFFLINE"):
        from_pretrained("google/t5-small")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "holds list"),
        (
            '{"model_type": "t6"}',
            "model_type='t6' is not supported; supported are albert, .* t5,",
        ),
    ],
)
def test_a_bad_config_is_named(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path)


def test_tensors_without_a_config_are_not_guessed_at(v1_0, tmp_path):
    (v1_0.write(tmp_path) / "config.json").unlink()
    with pytest.raises(ValueError, match=r"no config\.json"):
        from_pretrained(tmp_path)
