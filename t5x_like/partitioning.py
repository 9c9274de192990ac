"""Meshes and sharding: logical axis names, and the rules that map them to mesh axes.

Every parameter and main activation names its axes (`embed`, `heads`, `activation_batch`, ...);
RULES maps each name to the mesh axis that it is sharded over. The program is the same on every
mesh: one device, eight simulated devices, several processes, a pod.
"""

import atexit
import contextlib
import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed  # its client of the coordination service has no public name
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, PyTree

from t5x_like import processes

# Slowest network first: replicas only exchange gradients, model parallelism exchanges
# activations several times a layer, so its devices must be neighbours.
MESH_AXES = ("data", "fsdp", "expert", "model")
BATCH_AXES = ("data", "fsdp", "expert")

RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = (
    # Parameters: over `fsdp` along the axis that every kernel has, over `model` along another.
    ("embed", "fsdp"),
    ("vocab", "model"),
    ("heads", "model"),
    ("kv_heads", "model"),
    ("single_head", None),
    ("mlp", "model"),
    ("kv", None),
    ("query", None),  # of vectors that are added to the queries of a head
    ("experts", "expert"),
    ("router", None),
    ("layers", None),
    ("inner_layers", None),
    ("norm", None),
    ("buckets", None),
    ("positions", None),
    ("types", None),
    ("classes", None),
    ("boundary", None),
    ("characters", None),
    ("filters", None),
    ("directions", None),
    ("gates", None),
    # Activations: sharded by example, and inside a layer by head or hidden unit.
    ("activation_batch", BATCH_AXES),
    ("activation_length", None),
    ("residual_length", None),
    ("activation_embed", None),
    ("activation_heads", "model"),
    ("activation_kv_heads", "model"),
    ("activation_mlp", "model"),
    ("activation_vocab", "model"),
    # Inside a sparse layer by expert: there `expert` does not shard the batch.
    ("activation_experts", "expert"),
    ("activation_groups", ("data", "fsdp")),
)
# Sequence parallelism (Korthikanti et al. 2022, section 4.2.2): `model`, which shards the inside of
# a layer by head or hidden unit, shards what lies between layers by position.
_SEQUENCE_PARALLEL = ("residual_length", "model")
_PIECE = 4096  # of a reduce-scatter


def make_mesh(shape: Mapping[str, int], *, devices: Sequence[Any] | None = None) -> Mesh:
    """Make the mesh of a config: sizes by axis; absent axes are 1, one may be -1 (the rest).

    Raises:
        ValueError: an unknown axis, a size below 1, a product unlike the number of devices, or
            processes whose rows of a batch do not fit each other.
    """
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(shape, number=len(devices))
    # Placed as by `jax.make_mesh`, which refuses axes of other sizes than those of a TPU's torus.
    placed = mesh_utils.create_device_mesh(
        tuple(sizes.values()), devices, allow_split_physical_axes=True
    )
    mesh = Mesh(placed, MESH_AXES, axis_types=(AxisType.Auto,) * 4)
    batch_slices(mesh)  # an error now, and also where devices are only planned for
    return mesh


def mesh_sizes(shape: Mapping[str, int], *, number: int) -> dict[str, int]:
    """The size of each axis of a mesh of `number` devices, as `make_mesh` makes it.

    Raises:
        ValueError: an unknown axis, a size below 1, or a product unlike the number.
    """
    unknown = [name for name in shape if name not in MESH_AXES]
    if unknown:
        raise ValueError(
            f"mesh.{unknown[0]} is not a mesh axis: choose from {', '.join(MESH_AXES)}"
        )
    sizes = {name: shape.get(name, 1) for name in MESH_AXES}
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise ValueError(f"mesh={dict(shape)}: sizes are 1 or more, and at most one of them is -1")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if free:
        sizes[free[0]] = number // fixed
    if math.prod(sizes.values()) != number:
        wanted = f"a multiple of {fixed}" if free else fixed
        raise ValueError(f"mesh={dict(shape)} asks for {wanted} devices; there are {number}")
    return sizes


@contextlib.contextmanager
def layout(mesh: Mesh, *, sequence_parallel: bool = False) -> Iterator[None]:
    """Map logical axes to this mesh within the context: trace and run jitted functions in it.

    Args:
        mesh: the devices.
        sequence_parallel: shard the residual path by position over `model`. The sum over `model` at
            the end of a sublayer then becomes a reduce-scatter, with an all-gather before the next
            one, and what norms read and a backward pass keeps is cut.
    """
    own = dict(RULES) | dict([_SEQUENCE_PARALLEL] if sequence_parallel else [])
    with jax.set_mesh(mesh), nn.logical_axis_rules(tuple(own.items())):
        yield


def _names(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else axes or ()


def shardings(mesh: Mesh, axes: PyTree) -> PyTree:
    """The shardings of a tree of arrays, from their logical axes (a tree of PartitionSpecs)."""
    return nn.logical_to_mesh_sharding(axes, mesh, RULES)


def check_divisible(mesh: Mesh, shapes: PyTree, axes: PyTree) -> None:
    """Check that the mesh divides every array evenly.

    Raises:
        ValueError: the first array that it does not, with its size and the size of the mesh axes.
    """
    leaves = jax.tree.leaves_with_path(shapes)
    for (path, leaf), names in zip(leaves, jax.tree.leaves(axes), strict=True):
        spec = nn.logical_to_mesh_axes(names, RULES)
        for size, name, cut in zip(leaf.shape, names, spec, strict=False):
            cuts = _names(cut)
            parts = math.prod(mesh.shape[axis] for axis in cuts)
            if size % parts:
                raise ValueError(
                    f"mesh.{'*'.join(cuts)}={parts} does not divide {name}={size} of "
                    f"{jax.tree_util.keystr(path, simple=True, separator='/')}"
                )


def batch_parts(shape: Mapping[str, int]) -> int:
    """The number of shards of a batch on a mesh of these sizes; absent axes are 1."""
    return math.prod(shape.get(axis, 1) for axis in BATCH_AXES)


def mesh_axes(name: str) -> tuple[str, ...]:
    """The mesh axes that cut a logical axis here."""
    return _names(dict(nn.get_logical_axis_rules() or RULES)[name])


def parts(name: str) -> int:
    """The number of parts that the mesh of `layout` cuts a logical axis into; 1 outside of it."""
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape.get(axis, 1) for axis in mesh_axes(name))


def platform() -> str:
    """The kind of the devices that a program is traced for, such as `tpu`.

    They are those of the mesh of `layout`, which need not be attached.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def device_kind() -> str:
    """The model of these devices, such as `TPU v4`."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0].device_kind if device is None else device.device_kind


def host_memory() -> int:
    """The bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory() -> int | None:
    """The bytes of memory of all devices, or of this machine on CPUs; None where it is unknown."""
    if platform() == "cpu":
        return host_memory()
    of_each = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return None if of_each is None else of_each * jax.device_count()


def check_memory(what: str, needed: int, there: int | None) -> None:
    """Check that arrays fit into a memory, before they are made.

    Args:
        what: the setting, its value and the arrays.
        needed, there: bytes; None where the memory is unknown.

    Raises:
        ValueError: they do not.
    """
    if there is not None and needed > there:
        raise ValueError(
            f"{what} need {needed / 1e9:,.1f} GB, and there are {there / 1e9:,.1f} GB of memory"
        )


def check_batch(rows: int, shape: Mapping[str, int]) -> None:
    """Check that a mesh of these sizes divides the rows of a batch.

    Raises:
        ValueError: it does not.
    """
    if rows % (parts := batch_parts(shape)):
        raise ValueError(
            f"data.batch_size={rows} cannot be cut into mesh.{'*'.join(BATCH_AXES)}={parts} equal "
            "parts"
        )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch: examples over all axes but `model`."""
    return NamedSharding(mesh, P(BATCH_AXES))


def shard_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, Array]:
    """Make global arrays from this process's rows of a batch, `BatchSlice.rows`, in order."""
    sharding = batch_sharding(mesh)
    if jax.process_count() == 1:
        return jax.device_put(dict(batch), sharding)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }


@dataclasses.dataclass(frozen=True)
class BatchSlice:
    """The rows of each batch that a process reads, and puts onto its devices.

    Processes that hold the same rows, because only `model` divides them, have the same slice. The
    rows need not be contiguous: on a v5e:4x4 with 16 copies, whose ring of devices runs through all
    hosts, the first process has the blocks 0, 1, 6 and 15.

    Attributes:
        index: of the slice.
        number: of all different slices.
        blocks: its blocks of rows, in order. A batch has `number * len(blocks)` of equal size.
    """

    index: int
    number: int
    blocks: tuple[int, ...]

    def rows(self, batch_size: int) -> Int[np.ndarray, "rows"]:
        """The positions of the slice's rows in a batch of so many rows, in order."""
        if self.number == 1:  # all, also of a batch that the mesh does not divide
            return np.arange(batch_size)
        size = batch_size // (self.number * len(self.blocks))
        return (np.array(self.blocks)[:, None] * size + np.arange(size)).reshape(-1)

    def of(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The slice's rows of a global batch."""
        return {name: rows[self.rows(len(rows))] for name, rows in batch.items()}


@functools.lru_cache(maxsize=16)
def batch_slices(mesh: Mesh) -> dict[int, BatchSlice]:
    """The slice of each batch that each process reads, by the index of the process.

    Raises:
        ValueError: two processes have some rows in common and others not, or unequal numbers.
    """
    parts = batch_parts(mesh.shape)
    held: dict[int, set[int]] = {}
    device: Any
    for device, index in batch_sharding(mesh).devices_indices_map((parts,)).items():
        held.setdefault(device.process_index, set()).update(range(*index[0].indices(parts)))
    blocks = {process: tuple(sorted(own)) for process, own in held.items()}
    slices = sorted(set(blocks.values()))
    if sum(map(len, slices)) != parts or len(set(map(len, slices))) > 1:
        _refuse(mesh, blocks)
    return {
        process: BatchSlice(slices.index(own), len(slices), own) for process, own in blocks.items()
    }


def _refuse(mesh: Mesh, blocks: Mapping[int, tuple[int, ...]]) -> NoReturn:
    """Raise an error that names two processes whose rows do not fit each other."""
    first, second = next(
        (one, other)
        for one, other in itertools.combinations(sorted(blocks), 2)
        if len(blocks[one]) != len(blocks[other])
        or 0 < len({*blocks[one]} & {*blocks[other]}) < len(blocks[one])
    )
    sizes = {axis: size for axis, size in mesh.shape.items() if size > 1}
    devices = mesh.devices.size // len(blocks)
    raise ValueError(
        f"mesh={sizes} cuts a batch into {batch_parts(mesh.shape)} blocks of rows, and gives "
        f"process {first} the blocks {_listed(blocks[first])} and process {second} the blocks "
        f"{_listed(blocks[second])}: two processes must have the same rows, or equally many "
        f"others; set mesh.model to a divisor or a multiple of {devices}, the devices of a process"
    )


def _listed(blocks: Sequence[int]) -> str:
    shown = ", ".join(map(str, blocks[:8]))
    return f"{shown}, ..." if len(blocks) > 8 else shown


def batch_slice(mesh: Mesh) -> BatchSlice:
    """The slice of each batch that this process reads; raises ValueError as `batch_slices`."""
    return batch_slices(mesh)[jax.process_index()]


def connect_processes() -> None:
    """Connect the processes of a run, if JAX_NUM_PROCESSES is set; an error of one ends all.

    JAX_NUM_PROCESSES=auto on Cloud TPU, GKE, Slurm and MPI, where JAX discovers the processes;
    elsewhere their number, with JAX_COORDINATOR_ADDRESS (host:port) and JAX_PROCESS_ID. Call it
    before anything that uses a device.
    """
    number = os.environ.get("JAX_NUM_PROCESSES")
    if number is None or jax.distributed.is_initialized():
        return
    if number == "auto":
        jax.distributed.initialize()
    else:
        jax.distributed.initialize(
            coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
            num_processes=int(number),
            process_id=int(os.environ["JAX_PROCESS_ID"]),
        )
    _watch_errors()


def _watch_errors() -> None:
    """Let an error of one process end all of them, from now to the end of this one."""
    state: Any = distributed.global_state
    if state.num_processes > 1:
        watch = processes.watch(
            state.client, process=state.process_id, processes=state.num_processes
        )
        atexit.register(watch.close)  # before JAX's own handler, which ends the client


def cuts_batch(rows: int) -> bool:
    """Whether the mesh of `layout` cuts both a batch of so many rows and the parameters."""
    return parts("embed") > 1 and rows % parts("activation_batch") == 0


def sum_over_batch(
    function: Callable[..., Array],
    *arrays: tuple[Array, tuple[str | None, ...]],
    axes: tuple[str | None, ...],
) -> Array:
    """The sum over the batch that a function computes of rows, cut as a parameter is.

    A gradient of a parameter is such a sum. Each device computes that of its own rows; the devices
    that cut the parameter (`fsdp`) then add up the part of each by a reduce-scatter, and the
    replicas these parts by an all-reduce. XLA left alone reduces the gradients of a large
    vocabulary whole, over all devices.

    Args:
        function: of rows, linear in them: a sum over the first axis of each of its arguments.
        arrays: its arguments, each with its logical axes, of which the first is `activation_batch`.
        axes: logical axes of the sum, one of which is `embed`.
    """
    if not cuts_batch(arrays[0][0].shape[0]):
        return function(*(array for array, _ in arrays))
    columns = mesh_axes("embed")
    replicas = tuple(axis for axis in mesh_axes("activation_batch") if axis not in columns)

    def of_a_device(*rows: Array) -> Array:
        part = _reduce_scatter(function(*rows), columns, dim=axes.index("embed"))
        return jax.lax.psum(part, replicas)

    return jax.shard_map(
        of_a_device,
        in_specs=tuple(nn.logical_to_mesh_axes(names) for _, names in arrays),
        out_specs=nn.logical_to_mesh_axes(axes),
        check_vma=False,
    )(*(array for array, _ in arrays))


def _reduce_scatter(x: Array, axes: tuple[str, ...], *, dim: int) -> Array:
    """A reduce-scatter along a dimension, in pieces of another one.

    libtpu 0.0.42 compiles some arrays of 30 to 130 MB to an all-reduce, of twice the bytes, whose
    result it then cuts: [32128, 512] and [30592, 768], but not [4096, 768].
    """
    _, other = max((size, n) for n, size in enumerate(x.shape) if n != dim)
    ends = list(range(_PIECE, x.shape[other], _PIECE))
    pieces = jnp.split(x, ends, axis=other)
    found = [jax.lax.psum_scatter(one, axes, scatter_dimension=dim, tiled=True) for one in pieces]
    return jnp.concatenate(found, axis=other)


def fetch(arrays: PyTree) -> PyTree:
    """Copy whole arrays to the host, wherever the devices of all processes hold their parts.

    Call it on all processes, with the arrays that a program on the mesh returns.
    """

    def copy(array: Array) -> np.ndarray:
        # What each process has as a whole would be joined to several copies.
        if not isinstance(array, jax.Array) or array.is_fully_addressable:
            return np.asarray(array)
        return multihost_utils.process_allgather(array, tiled=True)

    return jax.tree.map(copy, arrays)
