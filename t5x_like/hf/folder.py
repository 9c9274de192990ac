"""The files of a Hugging Face folder: settings in JSON, tensors in one safetensors file or more."""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from t5x_like.hf.weight_map import Index, Tensor

CONFIG, GENERATION = "config.json", "generation_config.json"
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_OTHER_FORMATS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5")


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


class TensorFiles:
    """The tensors of a folder, read one at a time: `model.safetensors`, or shards and their index.

    Raises:
        ValueError: the folder has no such files, or only other formats; a shard is missing,
            damaged or outside the folder.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        if (folder / _SINGLE).is_file():
            self._readers = {_SINGLE: self._open(_SINGLE)}
            self._files = dict.fromkeys(self._readers[_SINGLE].keys(), _SINGLE)
        elif (folder / _INDEX).is_file():
            self._files = self._read_index()
            self._readers = {name: self._open(name) for name in sorted({*self._files.values()})}
            self._check_shards()
        else:
            raise ValueError(_explain_absence(folder))

    @property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return list(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, without reading it."""
        return tuple(self._readers[self._files[name]].get_slice(name).get_shape())

    def read(self, name: str, index: Index | None = None) -> np.ndarray:
        """Read a tensor, or its part at an index; bfloat16 has the dtype of ml_dtypes.

        Raises:
            ValueError: it is not floating-point.
        """
        reader = self._readers[self._files[name]]
        dtype = reader.get_slice(name).get_dtype()
        if dtype not in _DTYPES:
            raise ValueError(
                f"{self.folder}: {name} has dtype {dtype}; allowed: {', '.join(_DTYPES)}. "
                f"Quantized weights are not supported: {again(self.folder, 'dequantize it')}"
            )
        return reader.get_slice(name)[index] if index else reader.get_tensor(name)

    def _open(self, name: str) -> Any:
        path = self.folder / name
        if not path.is_file():
            raise ValueError(f"{self.folder / _INDEX} lists {name}, which is not there")
        try:
            return safe_open(path, framework="np")
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged or incomplete: {error}") from error

    def _read_index(self) -> dict[str, str]:
        path = self.folder / _INDEX
        files = read_json(path).get("weight_map")
        if not isinstance(files, dict):
            raise ValueError(f"{path} has no weight_map: the file of each tensor")
        for tensor, file in files.items():
            if not isinstance(file, str) or pathlib.PurePath(file).parts != (file,) or file == "..":
                raise ValueError(
                    f"{path} lists {file!r} for {tensor}; allowed: the name of a file in the folder"
                )
        return files

    def _check_shards(self) -> None:
        held = {name: set(reader.keys()) for name, reader in self._readers.items()}
        for tensor, file in self._files.items():
            if tensor not in held[file]:
                raise ValueError(
                    f"{self.folder / file} lacks {tensor}, which {_INDEX} lists for it"
                )


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
    return f"{folder} holds neither {_SINGLE} nor {_INDEX}"


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
    names = {ours: theirs for theirs, ours in _DTYPES.items()}
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
