"""From a folder, Hugging Face's or one of our checkpoints, to a module and its parameters."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from t5x_like import checkpoints, partitioning, systems
from t5x_like.hf import folder as files
from t5x_like.hf import weight_map
from t5x_like.hf.generation import GenerationSettings, read_generation
from t5x_like.names import choose, hint


@dataclasses.dataclass(frozen=True)
class Source:
    """What a folder describes, before its arrays are read.

    Attributes:
        system, config: the module of t5x_like.systems, and the settings of its `build`.
        load: arrays for a tree of ShapeDtypeStructs with dtypes and shardings.
    """

    system: str
    config: dict[str, Any]
    generation: GenerationSettings
    load: Callable[[PyTree], PyTree]


def open_source(path: pathlib.Path) -> Source:
    """Finds out what a folder is, and reads its settings.

    Raises:
        ValueError: there is no such folder, it is neither of the two, or it holds a model that no
            system here is.
    """
    if not path.is_dir():
        raise ValueError(_explain_absence(path))
    config = path / files.CONFIG
    if config.is_file() and "model_type" in (settings := files.read_json(config)):
        return _open_hugging_face(path, settings)
    if any(path.glob("*.safetensors")):
        raise ValueError(f"{path} has tensors, but no {files.CONFIG} that says of what model_type")
    return _open_checkpoint(path)


def _explain_absence(path: pathlib.Path) -> str:
    names = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
    near = hint(path.name, names).partition(" Allowed: ")[0]
    download = (
        f" Models are not downloaded by name: `hf download {path} --local-dir=FOLDER` does it."
        if not path.is_absolute() and len(path.parts) == 2 and not near
        else ""
    )
    return f"there is no folder {path}.{near}{download}"


def _open_hugging_face(path: pathlib.Path, settings: Mapping[str, Any]) -> Source:
    name = _system_of(settings["model_type"])
    system = systems.find(name)
    tensors = files.TensorFiles(path)
    return Source(
        system=name,
        config=system.from_hf_config(settings, names=tensors.names),
        generation=read_generation(path, settings),
        load=lambda shapes: _load_tensors(tensors, system, shapes),
    )


def _system_of(model_type: str) -> str:
    """The system that a config.json of that model_type describes."""
    known = {
        each: name
        for name in systems.names()
        for each in getattr(systems.find(name), "MODEL_TYPES", ())
    }
    return choose("model_type", model_type, known)


def _open_checkpoint(path: pathlib.Path) -> Source:
    stored = checkpoints.read_metadata(path)
    config = stored.get("config", {})
    if "system" not in config or "model" not in config:
        raise ValueError(f"the checkpoint {path} does not hold the config it was trained with")
    return Source(
        system=config["system"],
        config=dict(config["model"]),
        generation=GenerationSettings(**stored.get("generation", {})),
        load=lambda shapes: checkpoints.restore_params(path, shapes)[0],
    )


def parameter_shapes(module: nn.Module, *, dtype: Any, mesh: Mesh | None) -> PyTree:
    """The parameters' shapes, with a dtype and their place on a mesh, without allocating them.

    Raises:
        ValueError: the mesh does not cut a parameter evenly.
    """
    boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), module.example_batch()))
    axes, shapes = nn.get_partition_spec(boxed["params"]), nn.unbox(boxed["params"])
    if mesh is None:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), shapes)
    partitioning.check_divisible(mesh, shapes, axes)
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding),
        shapes,
        partitioning.shardings(mesh, axes),
    )


def _load_tensors(tensors: files.TensorFiles, system: ModuleType, shapes: PyTree) -> PyTree:
    """Reads parameter by parameter, so that the host holds one of them at a time."""
    flat = flax.traverse_util.flatten_dict(shapes, sep="/")
    parts = weight_map.pieces(system.WEIGHTS, {path: leaf.shape for path, leaf in flat.items()})
    names = _match_names(tensors, system, parts)
    params = {}
    for path, leaf in flat.items():
        array = weight_map.assemble(
            leaf.shape, parts[path], lambda name: tensors.read(names[name]), dtype=leaf.dtype
        )
        params[path] = jax.device_put(array, leaf.sharding)
    return flax.traverse_util.unflatten_dict(params, sep="/")


def _match_names(
    tensors: files.TensorFiles, system: ModuleType, parts: Mapping[str, list[weight_map.Piece]]
) -> dict[str, str]:
    """The name in the file of each tensor that the parameters are made of.

    Raises:
        ValueError: a tensor is missing, left over, of another shape, or not the copy that it
            should be.
    """
    wanted = {piece.tensor: piece.tensor_shape for own in parts.values() for piece in own}
    present = weight_map.canonical_names(
        set(tensors.names) - set(system.UNUSED_WEIGHTS),
        getattr(system, "WEIGHT_ALIASES", {}),
        wanted=wanted,
    )
    weight_map.check_names(wanted, present, where=str(tensors.folder))
    for name, (original, *copies) in present.items():
        if tensors.shape(original) != wanted[name]:
            raise ValueError(
                f"{tensors.folder}: {original} has shape {list(tensors.shape(original))}, and by "
                f"config.json the model has {list(wanted[name])}"
            )
        for copy in copies:
            if not np.array_equal(tensors.read(copy), tensors.read(original)):
                raise ValueError(
                    f"{tensors.folder}: {copy} differs from {original}, which the model ties it to"
                )
    return {name: originals[0] for name, originals in present.items()}
