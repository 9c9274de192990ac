"""Weights in files of PyTorch: equal to what PyTorch wrote, and nothing in them is run.

`golden/make_torch_files.py` wrote the files with PyTorch.
"""

import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from t5x_like.hf.folder import TensorFiles
from t5x_like.hf.torch_files import TorchFile

GOLDEN = Path(__file__).parents[1] / "golden"
COUNT = np.arange(12, dtype=np.float32)
WRITTEN = {
    "matrix": COUNT.reshape(3, 4),
    "transposed": COUNT.reshape(3, 4).T,
    "part": COUNT[5:9],
    "half": np.array([0.5, -2.0], np.float16),
    "brain": np.array([1.5, -3.0], ml_dtypes.bfloat16),
    "position_ids": np.array([[0, 1, 2]]),
    "scalar": np.array(7.0),
}


@pytest.fixture(params=["torch_file", "torch_file_legacy"])
def file(request):
    return GOLDEN / f"{request.param}.bin"


def test_tensors_are_what_torch_saved(file):
    read = TorchFile(file)
    assert read.names == list(WRITTEN)
    for name, array in WRITTEN.items():
        assert (read.shape(name), read.dtype(name)) == (array.shape, array.dtype.name)
        np.testing.assert_array_equal(read.read(name), array)
    part = read.read("transposed", (slice(1, 3), slice(0, 2)))
    np.testing.assert_array_equal(part, WRITTEN["transposed"][1:3, :2])
    assert part.flags["C_CONTIGUOUS"]


def test_a_folder_has_one_such_file_or_shards_with_an_index(file, tmp_path):
    shutil.copy(file, tmp_path / "pytorch_model.bin")
    np.testing.assert_array_equal(TensorFiles(tmp_path).read("matrix"), WRITTEN["matrix"])
    with pytest.raises(ValueError, match=r"position_ids has dtype int64; allowed: float64"):
        TensorFiles(tmp_path).read("position_ids")
    shard = "pytorch_model-00001-of-00001.bin"
    (tmp_path / "pytorch_model.bin").rename(tmp_path / shard)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"half": shard, "part": shard}}))
    read = TensorFiles(tmp_path)
    assert read.names == ["half", "part"]
    assert read.shape("part") == (4,)
    index.write_text(json.dumps({"weight_map": {"half": shard, "other": shard}}))
    with pytest.raises(ValueError, match=r"lacks other, which pytorch_model\.bin\.index\.json"):
        TensorFiles(tmp_path)


def test_a_file_that_was_cut_off_is_one_line(file, tmp_path):
    data, path = file.read_bytes(), tmp_path / "cut.bin"
    for length in range(0, len(data) - 1, 97):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"cut\.bin is damaged") as error:
            TorchFile(path)
        assert "\n" not in str(error.value)


class _Program:
    def __init__(self, made):
        self.made = made

    def __reduce__(self):
        return os.mkdir, (str(self.made),)


@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_a_program_in_a_file_is_refused_and_not_run(form, tmp_path):
    path, made = tmp_path / "model.bin", tmp_path / "made"
    data = pickle.dumps({"weight": _Program(made)}, protocol=2)
    if form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", data)
    else:
        header = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
        path.write_bytes(b"".join(pickle.dumps(one, protocol=2) for one in header) + data)
    with pytest.raises(ValueError, match=r"an object of \w+\.mkdir, and only tensors are read"):
        TorchFile(path)
    assert not made.exists()
