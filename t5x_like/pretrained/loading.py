"""Load a model with its parameters from a Hugging Face folder or a checkpoint.

Several models become one that averages their predictions (`ensemble`).
"""

import fnmatch
import functools
import operator
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from t5x_like import partitioning, paths, systems
from t5x_like.hf.architectures import Labels
from t5x_like.nn.compound_networks import Ensemble
from t5x_like.pretrained import int8_weights
from t5x_like.pretrained.encoder_model import PretrainedEncoder, PretrainedWords
from t5x_like.pretrained.model import Pretrained
from t5x_like.pretrained.permuted_model import PretrainedPermuted
from t5x_like.pretrained.weight_source import Leaves, Source, open_source, vocabulary_of
from t5x_like.systems.system import Adaptation
from t5x_like.systems.xlnet import PermutedEncoder

WEIGHTS = ("float32", "bfloat16", "int8")  # dtypes of the parameters of a model that predicts
HEAD = "head/"  # parameters of a head may be new, if the folder has another head


def from_pretrained(
    folder: str | os.PathLike,
    *,
    system: str | None = None,
    dtype: str = "float32",
    param_dtype: str | None = None,
    mesh: Mesh | None = None,
    average: int = 1,
    whole: bool = False,
    trust_code: bool = False,
    **settings: Any,
) -> Pretrained:
    """Load a model from a Hugging Face folder, a checkpoint or a run.

    Args:
        folder: a folder with config.json and model.safetensors or its shards, a checkpoint, the
            folder of a run (then its newest checkpoint), or a model of Hugging Face's hub,
            `OWNER/NAME` or `OWNER/NAME@REVISION`.
        system: the system to read a Hugging Face folder as, if not the default for its model_type:
            `unilm` for a folder of `bert`.
        dtype: the dtype of the computation and of the parameters: `float32` or `bfloat16`.
        param_dtype: the dtype of the parameters, if not `dtype`; float32 to train in bfloat16;
            int8 for kernels and embeddings in 8 bits, to predict only (`int8_weights`).
        mesh: devices to shard the parameters over (`partitioning.make_mesh`); None for one device.
        average: the number of newest checkpoints of a run to average.
        whole: whether to read all networks of a run that trains a policy (by DPO, for example),
            rather than only the policy.
        trust_code: whether to run a Python file that a run or checkpoint names as its system;
            otherwise loading a folder runs no code from it.
        settings: settings for the system's `build` that replace the folder's: attention, dropout,
            remat, ... For an encoder also `head` and `labels`: parameters of another head that the
            folder lacks are randomly initialized.

    Raises:
        ValueError: the folder does not exist, its model or a setting is not supported, tensors are
            missing, left over or of the wrong shape, or its system is a Python file that is not
            trusted.
    """
    source = open_source(
        paths.path(folder), system=system, average=average, whole=whole, trust_code=trust_code
    )
    return from_source(source, dtype=dtype, param_dtype=param_dtype, mesh=mesh, **settings)


def from_source(
    source: Source,
    *,
    dtype: str = "float32",
    param_dtype: str | None = None,
    mesh: Mesh | None = None,
    **settings: Any,
) -> Pretrained:
    """Load a model from an opened source; for the arguments see `from_pretrained`."""
    config = source.config | _dtype(source.system, dtype) | settings
    module = systems.build(source.system, config)
    param_dtype = _check_dtype("param_dtype", param_dtype or dtype, WEIGHTS)
    encoder = PretrainedEncoder
    if "encoder_characters" in module.example_batch():
        encoder = PretrainedWords
    elif isinstance(module, PermutedEncoder):
        encoder = PretrainedPermuted
    make = Pretrained if "decoder" in module.sides else encoder
    is_int8 = param_dtype == "int8"
    params = load(
        source,
        module,
        system=source.system,
        config=config,
        dtype=jnp.dtype("float32" if is_int8 else param_dtype),
        mesh=mesh,
    )
    return make(
        module,
        int8_weights.quantize(params) if is_int8 else params,
        system=source.system,
        config=config,
        generation=source.generation,
        token_ids=source.token_ids,
        mesh=mesh,
        model_type=source.model_type,
        labels=_labels(source, config),
        from_folder=not source.run,
        vocabulary=vocabulary_of(source),
        card=source.card,
    )


def _labels(source: Source, config: Mapping[str, Any]) -> dict[str, Labels]:
    """Return the labels of the source's head, unless the model has another head."""
    same = all(config.get(name) == source.config.get(name) for name in ("head", "labels"))
    return dict(source.labels) if same else {}


def _dtype(system: str, dtype: str) -> dict[str, str]:
    """Return the setting `dtype`; {} for a user's system that lacks it and computes in float32."""
    known = next(iter(systems.find(system).sizes.values()))
    setting = {"dtype": _check_dtype("dtype", dtype)}
    return setting if "dtype" in known or dtype != "float32" else {}


def _check_dtype(name: str, dtype: str, allowed: Sequence[str] = WEIGHTS[:2]) -> str:
    if dtype not in allowed:
        raise ValueError(f"{name}={dtype!r}: {' or '.join(map(repr, allowed))} allowed")
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
    without: Collection[str] = (),
    matrices: Leaves | None = None,
) -> PyTree:
    """Read the parameters of a module, and initialize parameters of its head that the source lacks.

    The latter are randomly initialized, and so are other new parameters and the additional rows of
    an embedding table that is longer than the source's, if the system allows it (`System.adapt`).

    Args:
        system, config: the module's system and settings.
        dtype: the dtype of the parameters.
        mesh: the devices to shard the parameters over; None for one device.
        seed: the seed of the initialization.
        without: submodules to leave out.
        matrices: LoRA matrices of the source to read, too (`nn.lora`); their products are not added
            to the kernels.

    Raises:
        ValueError: see `from_pretrained`.
    """
    shapes = parameter_shapes(module, dtype=dtype, mesh=mesh)
    shapes = {name: part for name, part in shapes.items() if name not in without}
    wanted = flax.traverse_util.flatten_dict(shapes, sep="/") | (matrices or {})
    how = systems.find(system).adapt(
        {**source.config, "system": source.system}, {**config, "system": system}
    )
    if how.complete:
        params = _read(source, wanted, how, whole=not without)
    else:
        _check_vocabulary(source, system, config)
        params = _read_known(source, module, wanted, how, mesh=mesh, seed=seed)
    return flax.traverse_util.unflatten_dict(params, sep="/")


def _check_vocabulary(source: Source, system: str, config: Mapping[str, Any]) -> None:
    """Check that a model of another system has a vocabulary of the same size."""
    size, source_size = config["vocab_size"], source.config["vocab_size"]
    if source.system != system and size != source_size:
        raise ValueError(
            f"model.vocab_size={size}: the model of system {source.system!r} to start from has "
            f"{source_size} tokens; set model.vocab_size={source_size}, and data.vocabulary to "
            "its vocabulary"
        )


def _read_known(
    source: Source,
    module: nn.Module,
    wanted: Leaves,
    how: Adaptation,
    *,
    mesh: Mesh | None,
    seed: int,
) -> Leaves:
    """Read the parameters that the source has, and initialize the others."""
    available = source.available(wanted)
    new = {
        path: leaf
        for path, leaf in wanted.items()
        if path not in available and _may_be_new(path, how)
    }
    shorter = {
        path: _first_rows(wanted[path], rows=rows, mesh=mesh)
        for path, rows in how.first_rows.items()
        if path in wanted and path not in available
    }
    known = {path: leaf for path, leaf in wanted.items() if path not in new} | shorter
    initial = _initialize(module, new | {path: wanted[path] for path in shorter}, seed=seed)
    params = initial | _read(source, known, how, whole=False)
    for path, leaf in shorter.items():
        table = jnp.concatenate([params[path], initial[path][leaf.shape[0] :]])
        params[path] = jax.device_put(table, wanted[path].sharding)
    return params


def _may_be_new(path: str, how: Adaptation) -> bool:
    beginnings = (HEAD, *how.new)
    return any(fnmatch.fnmatchcase(path, f"{beginning}*") for beginning in beginnings)


def _first_rows(leaf: Any, *, rows: int, mesh: Mesh | None) -> jax.ShapeDtypeStruct:
    """Return the shape of a table's first rows, replicated: they may not divide among devices."""
    replicated = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype, sharding=replicated)


def _read(source: Source, wanted: Leaves, how: Adaptation, *, whole: bool) -> Leaves:
    """Read parameters; make missing parameters from copied rows or sums, see `Adaptation`."""
    fewer, sums = {}, {}
    for path in how.copied_rows.keys() & wanted.keys():
        leaf = wanted[path]
        if path not in source.available({path: leaf}):
            shape = (max(how.copied_rows[path]) + 1, *leaf.shape[1:])
            fewer[path] = jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)
    for path in how.sums.keys() & wanted.keys():
        if path in source.available({path: wanted[path]}):
            continue  # a folder of such a network may also have the terms
        terms = dict.fromkeys(how.sums[path], wanted[path])
        if source.available(terms) == terms.keys():
            sums[path] = terms
    direct = {path: leaf for path, leaf in wanted.items() if path not in sums} | fewer
    params = source.read(functools.reduce(operator.or_, sums.values(), direct), whole=whole)
    computed = {path: params[path][jnp.array(how.copied_rows[path])] for path in fewer}
    computed |= {path: sum(params[term] for term in terms) for path, terms in sums.items()}
    params = {path: x for path, x in params.items() if path in wanted}
    return params | {path: jax.device_put(x, wanted[path].sharding) for path, x in computed.items()}


def load_part(
    source: Source, module: nn.Module, *, part: str, system: str, dtype: Any, mesh: Mesh | None
) -> PyTree:
    """Read the parameters of a submodule that is a complete network, such as a teacher.

    Args:
        part: the name of the submodule in the module's parameters.
        system: the system of the submodule.

    Raises:
        ValueError: see `from_pretrained`; or the source contains a model of another system.
    """
    if source.system != system:
        raise ValueError(
            f"the folder contains a model of system {source.system!r}; the {part} must be of "
            f"system {system!r}"
        )
    shapes = parameter_shapes(module, dtype=dtype, mesh=mesh)[part]
    wanted = flax.traverse_util.flatten_dict(shapes, sep="/")
    return flax.traverse_util.unflatten_dict(source.read(wanted, whole=False), sep="/")


def _initialize(module: nn.Module, wanted: Leaves, *, seed: int) -> Leaves:
    """Initialize only the wanted parameters, without holding the others in memory."""

    def init() -> Leaves:
        boxed = module.init(jax.random.key(seed), module.example_batch())["params"]
        flat = flax.traverse_util.flatten_dict(nn.unbox(boxed), sep="/")
        return {path: flat[path].astype(leaf.dtype) for path, leaf in wanted.items()}

    shardings = {path: leaf.sharding for path, leaf in wanted.items()}
    return jax.jit(init, out_shardings=shardings)()


def parameter_shapes(module: nn.Module, *, dtype: Any, mesh: Mesh | None) -> PyTree:
    """Return the shapes, dtypes and shardings of a module's parameters, without allocating them.

    Raises:
        ValueError: an axis of a parameter is not divisible by the mesh axes that shard it.
    """
    boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), module.example_batch())["params"])
    # Under a mesh, unboxing applies a sharding constraint, which only traced arrays allow.
    axes, shapes = nn.get_partition_spec(boxed), jax.eval_shape(nn.unbox, boxed)
    if mesh is None:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), shapes)
    partitioning.check_divisible(mesh, shapes, axes)
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding),
        shapes,
        partitioning.shardings(mesh, axes),
    )


def ensemble(models: Sequence[Pretrained]) -> Pretrained:
    """Combine models into one that averages the logits that generate, or the heads' probabilities.

    The models may differ in size and system; they must have the same vocabulary, and the same
    labels in the same order, which is not checked here beyond their number. The generation settings
    come from the first model.

    Raises:
        ValueError: there are fewer than two models, or their outputs differ in kind.
    """
    if len(models) < 2:
        raise ValueError(f"an ensemble of {len(models)}: two models or more are needed")
    first = models[0]
    for model in models:
        _check(first, model)
    # Cloned, because two equal modules must still be separate objects.
    module = Ensemble(tuple(model.module.clone() for model in models))
    return type(first)(
        module,
        {f"members_{n}": model.params for n, model in enumerate(models)},
        system=first.system,
        config=first.config,
        generation=first.generation,
        mesh=first.mesh,
    )


def _check(first: Pretrained, model: Pretrained) -> None:
    """Check that the outputs of two models can be averaged."""
    for name in ("vocab_size", "head", "labels"):
        values = [member.config.get(name) for member in (first, model)]
        if isinstance(values[0], Mapping):
            raise ValueError("an ensemble of runs of several tasks is not supported")
        generates = first.module.generates
        if values[0] != values[1] and (generates or name != "vocab_size"):
            raise ValueError(
                f"the members of an ensemble have model.{name}={values[0]!r} and {values[1]!r}: "
                "their outputs cannot be averaged"
            )
    if first.module.sides != model.module.sides:
        sides = " and ".join("+".join(member.module.sides) for member in (first, model))
        raise ValueError(f"the members of an ensemble read {sides}: choose models of one kind")
