"""What a folder holds: a model of Hugging Face's, or one of our checkpoints."""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import flax.traverse_util
import jax
import numpy as np

from t5x_like import checkpoints, hf, systems
from t5x_like.decoding.settings import GenerationSettings
from t5x_like.hf import folder as files
from t5x_like.hf import weight_map
from t5x_like.hf.architectures import read_head
from t5x_like.hf.generation_config import read_generation
from t5x_like.hf.record import HuggingFaceFormat
from t5x_like.names import choose, hint

Leaves = dict[str, Any]  # by path: "encoder/layers/block/feed_forward/wi/kernel"


class Source(Protocol):
    """What a folder describes, before its arrays are read."""

    @property
    def system(self) -> str:
        """The name of its module in t5x_like.systems."""

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the system's `build`."""

    @property
    def generation(self) -> GenerationSettings:
        """How to generate."""

    def available(self, wanted: Leaves) -> set[str]:
        """The paths that it has, with the shapes that are wanted."""

    def read(self, wanted: Leaves, *, whole: bool) -> Leaves:
        """Arrays for ShapeDtypeStructs with dtypes and shardings.

        Args:
            whole: the folder must hold nothing else.
        """


def open_source(path: pathlib.Path, *, system: str | None = None, average: int = 1) -> Source:
    """Finds out what a folder is, and reads its settings.

    Args:
        system: what to read a folder of Hugging Face's as, where several systems have its form;
            None for the one that its model_type names.
        average: see `checkpoints.restore_params`; of a run or a folder of checkpoints.

    Raises:
        ValueError: there is no such folder, it is neither of the two, or it holds a model that no
            system here is, or one to be averaged with none.
    """
    if not path.is_dir():
        raise ValueError(_explain_absence(path))
    config = path / files.CONFIG
    if config.is_file() and "model_type" in (settings := files.read_json(config)):
        if average != 1:
            raise ValueError(
                f"average={average} is for our checkpoints, and {path} holds one model"
            )
        return _open_hugging_face(path, settings, system)
    if any(path.glob("*.safetensors")):
        raise ValueError(f"{path} has tensors, but no {files.CONFIG} that says of what model_type")
    source = _open_checkpoint(path, average=average)
    if system not in (None, source.system):
        raise ValueError(f"{path} is a checkpoint of {source.system!r}, and no {system!r}")
    return source


def _explain_absence(path: pathlib.Path) -> str:
    names = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
    near = hint(path.name, names).partition(" Allowed: ")[0]
    download = (
        f" Models are not downloaded by name: `hf download {path} --local-dir=FOLDER` does it."
        if not path.is_absolute() and len(path.parts) == 2 and not near
        else ""
    )
    return f"there is no folder {path}.{near}{download}"


def _open_hugging_face(
    path: pathlib.Path, settings: Mapping[str, Any], wanted: str | None
) -> Source:
    name = _system_of(settings["model_type"], wanted)
    record = hf.find(name)
    tensors = files.TensorFiles(path)
    config = record.from_config(settings, names=tensors.names)
    if "head" in config:
        config |= read_head(settings, exported_as=record.exported_as)
    told = {k: v for k, v in _generation(name, config).items() if settings.get(k) is None}
    return _HuggingFace(name, config, read_generation(path, {**settings, **told}), tensors)


def _system_of(model_type: str, wanted: str | None) -> str:
    """The system that a config.json of that model_type describes, or the one that is wanted."""
    own = choose("model_type", model_type, hf.model_types())
    if wanted in (None, own):
        return own
    others = {name for name, record in hf.formats().items() if model_type in record.also_reads}
    allowed = {name: name for name in (own, *others)}
    return choose(f"system of a folder of model_type {model_type!r}", wanted, allowed)


def _generation(system: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The generation settings that follow from a model's settings."""
    return {name: config[ours] for name, ours in systems.find(system).generation.items()}


@dataclasses.dataclass(frozen=True)
class _HuggingFace:
    """A folder that Hugging Face wrote."""

    system: str
    config: dict[str, Any]
    generation: GenerationSettings
    tensors: files.TensorFiles

    def available(self, wanted: Leaves) -> set[str]:
        known = weight_map.described(self._record.weights, wanted)
        parts = self._parts({path: wanted[path] for path in known})
        names = self._names({piece.tensor for own in parts.values() for piece in own})
        return {
            path
            for path, own in parts.items()
            if all(
                piece.tensor in names
                and self.tensors.shape(names[piece.tensor][0]) == piece.tensor_shape
                for piece in own
            )
        }

    def read(self, wanted: Leaves, *, whole: bool) -> Leaves:
        parts = self._parts(wanted)
        shapes = {piece.tensor: piece.tensor_shape for own in parts.values() for piece in own}
        names = self._names(shapes)
        present = set(names) if whole else set(names) & set(shapes)
        weight_map.check_names(shapes, present, where=str(self.tensors.folder))
        originals = {
            name: self._original(name, names[name], shape) for name, shape in shapes.items()
        }
        arrays = {}
        # Parameter by parameter, so that the host holds one of them at a time.
        for path, leaf in wanted.items():
            array = weight_map.assemble(
                leaf.shape,
                parts[path],
                lambda name: self.tensors.read(originals[name]),
                dtype=leaf.dtype,
            )
            arrays[path] = jax.device_put(array, leaf.sharding)
        return arrays

    @property
    def _record(self) -> HuggingFaceFormat:
        return hf.find(self.system)

    def _parts(self, wanted: Leaves) -> dict[str, list[weight_map.Piece]]:
        shapes = {path: leaf.shape for path, leaf in wanted.items()}
        return weight_map.pieces(self._record.weights, shapes)

    def _names(self, wanted: Iterable[str]) -> dict[str, list[str]]:
        """The tensors of the files: by the names in WEIGHTS, those in the files."""
        used = set(wanted)
        return weight_map.canonical_names(
            set(self.tensors.names) - (set(self._record.unused) - used),
            self._record.aliases,
            wanted=used,
        )

    def _original(self, name: str, names: list[str], shape: tuple[int, ...]) -> str:
        """The name in the files of a tensor, checked."""
        original, *copies = names
        if self.tensors.shape(original) != shape:
            raise ValueError(
                f"{self.tensors.folder}: {original} has shape "
                f"{list(self.tensors.shape(original))}, and by config.json the model has "
                f"{list(shape)}"
            )
        for copy in copies:
            if not np.array_equal(self.tensors.read(copy), self.tensors.read(original)):
                raise ValueError(
                    f"{self.tensors.folder}: {copy} differs from {original}, which the model ties "
                    "it to"
                )
        return original


def _open_checkpoint(path: pathlib.Path, *, average: int) -> Source:
    stored = checkpoints.read_metadata(path)
    config = stored.get("config", {})
    if "system" not in config or "model" not in config:
        raise ValueError(f"the checkpoint {path} does not hold the config it was trained with")
    settings = _generation(config["system"], config["model"]) | stored.get("generation", {})
    generation = GenerationSettings(**settings)
    return _Checkpoint(config["system"], dict(config["model"]), generation, path, average)


@dataclasses.dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint of ours, or a run, or the mean of its newest checkpoints."""

    system: str
    config: dict[str, Any]
    generation: GenerationSettings
    path: pathlib.Path
    average: int

    def available(self, wanted: Leaves) -> set[str]:
        shapes = checkpoints.parameter_shapes(self.path)
        return {path for path, leaf in wanted.items() if shapes.get(path) == leaf.shape}

    def read(self, wanted: Leaves, *, whole: bool) -> Leaves:
        tree = flax.traverse_util.unflatten_dict(wanted, sep="/")
        params, _ = checkpoints.restore_params(self.path, tree, whole=whole, average=self.average)
        return flax.traverse_util.flatten_dict(params, sep="/")
