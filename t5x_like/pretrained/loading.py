"""From a folder, Hugging Face's or one of our checkpoints, to a model with its parameters."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from t5x_like import partitioning, systems
from t5x_like.pretrained.encoder_model import PretrainedEncoder
from t5x_like.pretrained.model import Pretrained
from t5x_like.pretrained.weight_source import Leaves, Source, open_source

# What a model may have anew where it is read with another head than the folder's.
_HEAD = "head/"


def from_pretrained(
    folder: str | os.PathLike,
    *,
    system: str | None = None,
    dtype: str = "float32",
    param_dtype: str | None = None,
    mesh: Mesh | None = None,
    average: int = 1,
    **settings: Any,
) -> Pretrained:
    """Reads a Hugging Face folder, or one of our checkpoints.

    Args:
        folder: with config.json and model.safetensors or its shards; or of a checkpoint, or a run.
        system: what to read a Hugging Face folder as, if not as what its model_type names: `unilm`
            for one of `bert`.
        dtype: of the computation and of the parameters: `float32` or `bfloat16`.
        param_dtype: of the parameters, if not `dtype`; float32 to train on in bfloat16.
        mesh: to spread the parameters over (`partitioning.make_mesh`); None for one device.
        average: of a run, how many of its newest checkpoints to take the mean of.
        settings: of the system's `build`, in place of the folder's: attention, dropout, remat, ...
            For an encoder also `head` and `labels`: what the folder lacks of another head than its
            own is drawn at random.

    Raises:
        ValueError: no such folder, a model or a setting that does not exist here, or tensors
            that are missing, left over or of the wrong shape.
    """
    source = open_source(pathlib.Path(folder).expanduser(), system=system, average=average)
    config = source.config | {"dtype": _check_dtype("dtype", dtype)} | settings
    module = systems.build(source.system, config)
    param_dtype = _check_dtype("param_dtype", param_dtype or dtype)
    make = Pretrained if "decoder" in module.sides else PretrainedEncoder
    return make(
        module,
        load(
            source,
            module,
            system=source.system,
            config=config,
            dtype=jnp.dtype(param_dtype),
            mesh=mesh,
        ),
        system=source.system,
        config=config,
        generation=source.generation,
        mesh=mesh,
    )


def _check_dtype(name: str, dtype: str) -> str:
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"{name}={dtype!r}: 'float32' or 'bfloat16' allowed")
    return dtype


def load(
    source: Source,
    module: nn.Module,
    *,
    system: str,
    config: Mapping[str, Any],
    dtype: Any,
    mesh: Mesh | None,
    seed: int = 0,
) -> PyTree:
    """The parameters of a module, read from a source; of a head that is not the source's, drawn.

    So are the rows of a table that the system allows to be longer than the source's (`new_rows`).

    Args:
        system, config: what the module was built as, and its settings.
        seed: of what is drawn.

    Raises:
        ValueError: as `from_pretrained`.
    """
    shapes = parameter_shapes(module, dtype=dtype, mesh=mesh)
    wanted = flax.traverse_util.flatten_dict(shapes, sep="/")
    kinds = [
        (name, settings.get("head"), settings.get("labels"))
        for name, settings in ((source.system, source.config), (system, config))
    ]
    declared = systems.find(system)
    rows = declared.copied_rows
    if kinds[0] == kinds[1]:
        found = _read(source, wanted, whole=True, rows=rows)
        return flax.traverse_util.unflatten_dict(found, sep="/")
    available = source.available(wanted)
    may_be_new = (_HEAD, *declared.new_parameters)
    new = {
        path: leaf
        for path, leaf in wanted.items()
        if path.startswith(may_be_new) and path not in available
    }
    shorter = {
        path: _shortened(wanted[path], rows=sum(source.config[name] for name in names), mesh=mesh)
        for path, names in declared.new_rows.items()
        if path in wanted and path not in available and source.system == system
    }
    known = {path: leaf for path, leaf in wanted.items() if path not in new} | shorter
    drawn = _draw(module, new | {path: wanted[path] for path in shorter}, seed=seed)
    found = drawn | _read(source, known, whole=False, rows=rows)
    for path, leaf in shorter.items():
        table = jnp.concatenate([found[path], drawn[path][leaf.shape[0] :]])
        found[path] = jax.device_put(table, wanted[path].sharding)
    return flax.traverse_util.unflatten_dict(found, sep="/")


def _shortened(leaf: Any, *, rows: int, mesh: Mesh | None) -> jax.ShapeDtypeStruct:
    """The first rows of a table, whole on every device: they may not divide as all of them do."""
    whole = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype, sharding=whole)


def _read(
    source: Source, wanted: Leaves, *, whole: bool, rows: Mapping[str, Sequence[int]]
) -> Leaves:
    """What is wanted of a source.

    Args:
        rows: of tables that may have fewer rows there: which of those ours are copies of.
    """
    fewer = {}
    for path in rows.keys() & wanted.keys():
        leaf = wanted[path]
        if path not in source.available({path: leaf}):
            shape = (max(rows[path]) + 1, *leaf.shape[1:])
            fewer[path] = jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)
    found = source.read(wanted | fewer, whole=whole)
    copies = {path: found[path][jnp.array(rows[path])] for path in fewer}
    return found | {path: jax.device_put(x, wanted[path].sharding) for path, x in copies.items()}


def load_part(
    source: Source, module: nn.Module, *, part: str, system: str, dtype: Any, mesh: Mesh | None
) -> PyTree:
    """The parameters of one part of a module, a network by itself, all read from a source.

    Args:
        part: its name in the module's parameters.
        system: of the part.

    Raises:
        ValueError: as `from_pretrained`; or the source is of another system.
    """
    if source.system != system:
        raise ValueError(
            f"the folder holds a model of {source.system!r}, and the {part} is one of {system!r}"
        )
    shapes = parameter_shapes(module, dtype=dtype, mesh=mesh)[part]
    wanted = flax.traverse_util.flatten_dict(shapes, sep="/")
    return flax.traverse_util.unflatten_dict(source.read(wanted, whole=False), sep="/")


def _draw(module: nn.Module, wanted: Leaves, *, seed: int) -> Leaves:
    """Some of a module's initial parameters, without making the others."""

    def init() -> Leaves:
        boxed = module.init(jax.random.key(seed), module.example_batch())["params"]
        flat = flax.traverse_util.flatten_dict(nn.unbox(boxed), sep="/")
        return {path: flat[path].astype(leaf.dtype) for path, leaf in wanted.items()}

    shardings = {path: leaf.sharding for path, leaf in wanted.items()}
    return jax.jit(init, out_shardings=shardings)()


def parameter_shapes(module: nn.Module, *, dtype: Any, mesh: Mesh | None) -> PyTree:
    """The parameters' shapes, with a dtype and their place on a mesh, without allocating them.

    Raises:
        ValueError: the mesh does not cut a parameter evenly.
    """
    boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), module.example_batch())["params"])
    # Under a mesh unboxing constrains, which only a traced array can be.
    axes, shapes = nn.get_partition_spec(boxed), jax.eval_shape(nn.unbox, boxed)
    if mesh is None:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), shapes)
    partitioning.check_divisible(mesh, shapes, axes)
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding),
        shapes,
        partitioning.shardings(mesh, axes),
    )
