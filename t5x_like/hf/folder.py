"""The files of a Hugging Face folder: settings in JSON, tensors in one file or more.

Tensors are read from safetensors files or, in folders of before 2023, from PyTorch's, and are
written as safetensors.
"""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from t5x_like.hf.torch_files import TorchFile
from t5x_like.hf.weight_map import Index, Tensor

CONFIG, GENERATION = "config.json", "generation_config.json"
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_TORCH, _TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_OTHER_FORMATS = ("tf_model.h5", "flax_model.msgpack")


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Read the settings in a JSON file.

    Raises:
        ValueError: it is not a JSON object.
    """
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path} is not valid JSON: it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} holds {type(settings).__name__}, not a JSON object of settings")
    return settings


def write_json(path: pathlib.Path, settings: Mapping[str, Any]) -> None:
    """Write settings like Hugging Face, sorted by name."""
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class TensorFile(Protocol):
    """A file of tensors, which are read when they are asked for."""

    @property
    def names(self) -> list[str]:
        """The names of the tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, without reading it."""

    def dtype(self, name: str) -> str:
        """Return the name of a tensor's dtype, as NumPy has it, or another word."""

    def read(self, name: str, index: Index | None = None) -> np.ndarray:
        """Read a tensor, or its part at an index."""


class _SafeTensors:
    """A safetensors file.

    Raises:
        ValueError: it is damaged.
    """

    def __init__(self, path: pathlib.Path):
        try:
            self._file: Any = safe_open(path, framework="np")
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged or incomplete: {error}") from error

    @property
    def names(self) -> list[str]:
        return list(self._file.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        word = self._file.get_slice(name).get_dtype()
        return _DTYPES.get(word, word)

    def read(self, name: str, index: Index | None = None) -> np.ndarray:
        return self._file.get_slice(name)[index] if index else self._file.get_tensor(name)


class TensorFiles:
    """The tensors of a folder, read one at a time.

    They are in `model.safetensors`, in shards with an index, or in files of PyTorch with the same
    division.

    Raises:
        ValueError: the folder has no such files, or only other formats; a shard is missing,
            damaged or outside the folder.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        for single, index in ((_SINGLE, _INDEX), (_TORCH, _TORCH_INDEX)):
            if (folder / single).is_file():
                self._readers = {single: _open(folder / single)}
                self._files = dict.fromkeys(self._readers[single].names, single)
                return
            if (folder / index).is_file():
                self._files = _read_index(folder / index)
                self._readers = _open_shards(folder / index, self._files)
                return
        raise ValueError(_explain_absence(folder))

    @property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return list(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, without reading it."""
        return self._readers[self._files[name]].shape(name)

    def read(self, name: str, index: Index | None = None) -> np.ndarray:
        """Read a tensor, or its part at an index; bfloat16 has the dtype of ml_dtypes.

        Raises:
            ValueError: it is not floating-point.
        """
        reader = self._readers[self._files[name]]
        if reader.dtype(name) not in _DTYPES.values():
            raise ValueError(
                f"{self.folder}: {name} has dtype {reader.dtype(name)}; allowed: "
                f"{', '.join(_DTYPES.values())}. Quantized weights are not supported: "
                f"{again(self.folder, 'dequantize it')}"
            )
        return reader.read(name, index)


def _open(path: pathlib.Path) -> TensorFile:
    return TorchFile(path) if path.suffix == ".bin" else _SafeTensors(path)


def _read_index(path: pathlib.Path) -> dict[str, str]:
    """Return {tensor: file} of an index."""
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict):
        raise ValueError(f"{path} has no weight_map: the file of each tensor")
    for tensor, file in files.items():
        if not isinstance(file, str) or pathlib.PurePath(file).parts != (file,) or file == "..":
            raise ValueError(
                f"{path} lists {file!r} for {tensor}; allowed: the name of a file in the folder"
            )
    return files


def _open_shards(index: pathlib.Path, files: Mapping[str, str]) -> dict[str, TensorFile]:
    """Open the files of an index, and check that they have its tensors."""
    readers = {}
    for name in sorted({*files.values()}):
        if not (index.parent / name).is_file():
            raise ValueError(f"{index} lists {name}, which is not there")
        readers[name] = _open(index.parent / name)
    held = {name: set(reader.names) for name, reader in readers.items()}
    for tensor, file in files.items():
        if tensor not in held[file]:
            path = index.parent / file
            raise ValueError(f"{path} lacks {tensor}, which {index.name} lists for it")
    return readers


def again(folder: pathlib.Path, what: str = "") -> str:
    """Return the advice to save a folder's model again, with the class that keeps its head."""
    config = folder / CONFIG
    names = read_json(config).get("architectures") if config.is_file() else None
    kind = names[0] if isinstance(names, list) and names else "the class of the model and its head"
    done = f", {what}," if what else ""
    return (
        f"Load it with transformers' {kind} (AutoModel leaves the head out){done} and save it with "
        "save_pretrained into a new folder"
    )


def _explain_absence(folder: pathlib.Path) -> str:
    others = [name for name in _OTHER_FORMATS if (folder / name).is_file()]
    if others:
        return f"{folder} holds {others[0]}, which is not supported: {_SINGLE} is. {again(folder)}"
    return f"{folder} holds neither {_SINGLE} nor {_TORCH}, nor an index of such files"


def write_tensors(folder: pathlib.Path, tensors: Iterable[Tensor], *, max_shard_size: int) -> None:
    """Write tensors in the order of their names, in shards with an index if they exceed one file.

    Tensors are computed and written one after the other. Older tensor files in the folder are
    removed. All processes of a run call this, and the first process writes.

    Args:
        max_shard_size: the largest file, in bytes of tensors; a larger tensor gets a separate file.
    """
    tensors = sorted(tensors, key=lambda tensor: tensor.name)
    shards = _plan(tensors, max_shard_size)
    names = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = [_SINGLE]
    if jax.process_index() != 0:
        for tensor in tensors:
            tensor.load()  # computed by all processes together
        return
    for old in [*folder.glob("model-*-of-*.safetensors"), folder / _SINGLE, folder / _INDEX]:
        old.unlink(missing_ok=True)
    for name, shard in zip(names, shards, strict=True):
        _write_file(folder / name, shard)
    if len(shards) > 1:
        files = {t.name: name for name, shard in zip(names, shards, strict=True) for t in shard}
        size = sum(tensor.size for tensor in tensors)
        write_json(folder / _INDEX, {"metadata": {"total_size": size}, "weight_map": files})


def _write_file(path: pathlib.Path, tensors: Iterable[Tensor]) -> None:
    """Write a safetensors file one tensor at a time; its library needs all tensors in memory.

    A file has the length of the header in 8 bytes, the header in JSON, and the tensors without
    gaps.
    """
    # Of 8-bit weights for programs; as a model they are not read.
    names = {"int8": "I8"} | {ours: theirs for theirs, ours in _DTYPES.items()}
    # transformers refuses a file that does not name the framework whose layouts it has.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.size
        header[tensor.name] = {
            "dtype": names[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            # As a view of bytes, since bfloat16 does not support the buffer protocol.
            file.write(np.ascontiguousarray(tensor.load()).reshape(-1).view(np.uint8).data)


def _plan(tensors: list[Tensor], max_shard_size: int) -> list[list[Tensor]]:
    shards: list[list[Tensor]] = [[]]
    room = max_shard_size
    for tensor in tensors:
        if shards[-1] and tensor.size > room:
            shards.append([])
            room = max_shard_size
        shards[-1].append(tensor)
        room -= tensor.size
    return shards
