"""The files of a Hugging Face folder: settings in JSON, tensors in one safetensors file or more."""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from t5x_like.hf.weight_map import Tensor

CONFIG, GENERATION = "config.json", "generation_config.json"
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_OTHER_FORMATS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5")


def is_hugging_face(folder: pathlib.Path) -> bool:
    """Whether a folder is one of Hugging Face's, whose config.json names a model_type."""
    config = folder / CONFIG
    return config.is_file() and "model_type" in read_json(config)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """The settings in a JSON file.

    Raises:
        ValueError: it is not JSON of a mapping.
    """
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} holds {type(settings).__name__}, not settings by name")
    return settings


def write_json(path: pathlib.Path, settings: Mapping[str, Any]) -> None:
    """Writes settings as Hugging Face does, in the order of their names."""
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class TensorFiles:
    """The tensors of a folder, read one at a time: `model.safetensors`, or shards and their index.

    Raises:
        ValueError: no such files, only other formats, a shard that is missing or damaged.
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
        """A tensor's shape, without reading it."""
        return tuple(self._readers[self._files[name]].get_slice(name).get_shape())

    def read(self, name: str) -> np.ndarray:
        """A tensor; bfloat16 is that of ml_dtypes."""
        return self._readers[self._files[name]].get_tensor(name)

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
            raise ValueError(f"{path} has no weight_map, which tells the file of each tensor")
        return files

    def _check_shards(self) -> None:
        held = {name: set(reader.keys()) for name, reader in self._readers.items()}
        for tensor, file in self._files.items():
            if tensor not in held[file]:
                raise ValueError(f"{self.folder / file} lacks {tensor}, which the index has there")


def _explain_absence(folder: pathlib.Path) -> str:
    others = [name for name in _OTHER_FORMATS if (folder / name).is_file()]
    if others:
        return (
            f"{folder} holds {others[0]}, which is not read: only {_SINGLE} is. Load and save the "
            "model once with transformers, save_pretrained(folder, safe_serialization=True)"
        )
    return f"{folder} holds neither {_SINGLE} nor {_INDEX}"


def write_tensors(folder: pathlib.Path, tensors: Iterable[Tensor], *, max_shard_size: int) -> None:
    """Writes tensors in the order of their names, in shards with an index if one file is too small.

    Older tensor files of the folder are removed, so that the two do not mix.

    Args:
        max_shard_size: bytes of tensors in a file; a larger tensor has a file of its own.
    """
    tensors = sorted(tensors, key=lambda tensor: tensor.name)
    shards = _plan(tensors, max_shard_size)
    names = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = [_SINGLE]
    for old in [*folder.glob("model-*-of-*.safetensors"), folder / _SINGLE, folder / _INDEX]:
        old.unlink(missing_ok=True)
    for name, shard in zip(names, shards, strict=True):
        # Transformers refuses a file that does not say which framework's layouts it has.
        arrays = {tensor.name: tensor.load() for tensor in shard}
        save_file(arrays, folder / name, metadata={"format": "pt"})
    if len(shards) > 1:
        files = {t.name: name for name, shard in zip(names, shards, strict=True) for t in shard}
        size = sum(tensor.size for tensor in tensors)
        write_json(folder / _INDEX, {"metadata": {"total_size": size}, "weight_map": files})


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
