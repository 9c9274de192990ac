"""The collectives of a compiled program: kind, mesh axes, count and bytes."""

import collections
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from jax.sharding import Mesh

from t5x_like.partitioning import number_of_slices
from t5x_like.research.planning.hlo import Instruction, Program, Visit

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
SLICES = ("slices",)  # what a collective between slices is over
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)+)\}")
_IOTA = r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?"
_GROUPS = re.compile(r"replica_groups=" + _IOTA)
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(" + _IOTA + r"\))? *\{([^}]*)\}"
)
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')  # such as ALL_REDUCE
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?(?:=(\d+))?")
_Key = tuple[str, tuple[str, ...], tuple[int, ...]]  # kind, axes, dimensions of the torus
# executions; bytes that a device sends in each, and over the network; bytes of the array
_Amounts = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of one kind over the same mesh axes.

    Attributes:
        kind: one of KINDS.
        axes: the mesh axes that a group of devices spans; SLICES if the group spans slices, which
            the data center network connects.
        count: number of executions in a step.
        bytes: minimum bytes that each device sends in a step: with n devices in a group and shards
            of b bytes, (n - 1) b for an all-gather, 2 (n - 1) / n times the whole array for an
            all-reduce, half of that for a reduce-scatter.
        network: of these bytes, the bytes that go over the network between slices or hosts of GPUs
            at least. Within a host the members of a group share the work: of h hosts with n devices
            together, each device sends (h - 1) / (n - 1) of its bytes to another host.
        largest: bytes of the largest array that a collective reads or writes.
        dimensions: the dimensions of the torus that a group spans; () between slices, or if
            devices have no coordinates.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    bytes: int
    network: int
    largest: int
    dimensions: tuple[int, ...]


def collect(program: Program, mesh: Mesh) -> list[Collective]:
    """Return the collectives of a step, sorted by bytes, largest first."""
    amounts_by_key: dict[_Key, list[_Amounts]] = collections.defaultdict(list)
    for key, amounts in itertools.chain(_of_devices(program, mesh), _of_hosts(program, mesh)):
        amounts_by_key[key].append(amounts)
    collectives = [
        Collective(
            kind,
            axes,
            count=sum(times for times, *_ in rows),
            bytes=sum(times * sent for times, sent, _, _ in rows),
            network=sum(times * network for times, _, network, _ in rows),
            largest=max(largest for *_, largest in rows),
            dimensions=dimensions,
        )
        for (kind, axes, dimensions), rows in amounts_by_key.items()
    ]
    return sorted(collectives, key=lambda collective: -collective.bytes)


def _of_devices(program: Program, mesh: Mesh) -> Iterator[tuple[_Key, _Amounts]]:
    """Yield the collectives of the program, which devices carry out by themselves."""
    seen: set[tuple] = set()
    for visit, instruction in program.instructions():
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS or instruction.name in program.continued:
            continue
        # A collective that is split over several fusions occurs in each, with one channel. Outside
        # of fusions each instruction is a collective: in a `shard_map` all may have the same
        # channel.
        channel = () if visit.is_frame else instruction.channel
        key = (visit.frame, kind, channel or instruction.name)
        if key in seen:
            continue
        seen.add(key)
        groups = _groups(instruction, mesh.devices.size)
        if groups.shape[1] > 1:
            if kind == "all-reduce" and "all-reduce-scatter" in visit.name:
                kind = "reduce-scatter"  # the TPU's form, in which each device keeps only its shard
            size = sum(array.bytes for array in program.operands(visit, instruction))
            axes, dimensions = _spanned(groups, mesh)
            share = 1.0 if axes == SLICES else _network_share(kind, groups, mesh)
            amounts = _amounts(kind, size, groups.shape[1], visit, share=share)
            yield (kind, axes, dimensions), amounts


def _of_hosts(program: Program, mesh: Mesh) -> Iterator[tuple[_Key, _Amounts]]:
    """Yield the collectives between slices, for which devices send arrays to their hosts."""
    slices = number_of_slices(list(mesh.devices.flat))
    for visit, instruction in program.instructions():
        transfer = _TRANSFER.search(instruction.attributes)
        if instruction.opcode == "send" and transfer:
            word = transfer[1].lower().replace("_", "-")
            kind = "collective-permute" if word == "one-to-one" else word
            size = sum(array.bytes for array in program.operands(visit, instruction))
            yield (kind, SLICES, ()), _amounts(kind, size, slices, visit, share=1.0)


def _amounts(kind: str, size: int, devices: int, visit: Visit, *, share: float) -> _Amounts:
    """Return the amounts of a collective.

    Args:
        kind: one of KINDS.
        size: bytes that a device puts in.
        devices: devices of a group.
        visit: the call site.
        share: the share of the bytes that goes over the network.
    """
    if kind == "all-gather":
        sent, largest = size * (devices - 1), size * devices
    else:
        part = {"all-reduce": 2 * (devices - 1) / devices}
        part |= dict.fromkeys(("collective-permute", "collective-broadcast"), 1.0)
        sent, largest = int(size * part.get(kind, (devices - 1) / devices)), size
    return visit.times, sent, int(sent * share), largest


def _network_share(kind: str, groups: np.ndarray, mesh: Mesh) -> float:
    """Return the share of the bytes of a collective of GPUs that goes to other hosts at least."""
    if mesh.devices.flat[0].platform != "gpu":
        return 0.0
    hosts = np.array([device.process_index for device in mesh.devices.flat])[groups]
    number, members = max(len(set(row)) for row in hosts.tolist()), groups.shape[1]
    if kind.endswith("all-to-all"):  # each pair of devices has bytes of its own
        return (members - members // number) / (members - 1)
    return (number - 1) / (members - 1)


def _groups(instruction: Instruction, devices: int) -> np.ndarray:
    """Return the groups of devices that communicate: indices in the mesh, [groups, members].

    The pairs of a permutation count as groups of two.
    """
    text = instruction.attributes
    if match := _MESH.search(text):
        return _mesh_groups(*match.groups(), devices=devices)
    if match := _GROUPS.search(text):
        return _iota(*match.groups())
    listed = _LISTED.search(text)
    rows = [_numbers(row) for row in re.findall(r"\{([\d,]+)\}", listed[1])] if listed else []
    return np.array(rows) if rows else np.arange(devices)[None]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _iota(shape: str, bounds: str | None, order: str | None) -> np.ndarray:
    """Parse `[2,4]<=[4,2]T(1,0)`: iota of the bounds on the right, transposed, then reshaped."""
    size = _numbers(bounds or shape)
    numbers = np.arange(math.prod(size)).reshape(size)
    return numbers.transpose(_numbers(order) if order else None).reshape(_numbers(shape))


def _mesh_groups(
    axes: str, shape: str | None, bounds: str | None, order: str | None, over: str, *, devices: int
) -> np.ndarray:
    """Parse `mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}`: groups along the named axes.

    A part of an axis is written `'b':(2)2`: after a first factor of 2, the next factor of 2.
    """
    sizes = {name: int(size) for name, _, _, size in _AXIS.findall(axes)}
    ids = np.arange(devices)
    if shape:
        bounded = _numbers(bounds or shape)
        ids = ids.reshape(bounded).transpose(_numbers(order) if order else None)
    parts: dict[str, tuple[int, int]] = {}
    for name, before, size, _ in _AXIS.findall(over):
        parts[name] = (int(before), int(size)) if size else (1, sizes[name])
    split: list[int] = []
    along = []
    for name, size in sizes.items():
        before, length = parts.get(name, (1, 1))
        along.append(len(split) + 1)
        split += [before, length, size // (before * length)]
    split_ids = ids.reshape(split)
    return np.moveaxis(split_ids, along, range(-len(along), 0)).reshape(
        -1, math.prod(split_ids.shape[axis] for axis in along)
    )


def _spanned(groups: np.ndarray, mesh: Mesh) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the mesh axes, and the dimensions of the torus, that the groups span."""
    coordinates_in_mesh = np.stack(np.unravel_index(groups, mesh.devices.shape), axis=-1)
    names = tuple(mesh.axis_names[axis] for axis in _varying(coordinates_in_mesh))
    slices, coordinates = _coordinates(mesh)
    if _varying(slices[groups]):
        return SLICES, ()
    return names, _varying(coordinates[groups])


@functools.lru_cache(maxsize=4)
def _coordinates(mesh: Mesh) -> tuple[np.ndarray, np.ndarray]:
    """Return the slice of each device, [N, 1], and its coordinates in the torus, [N, dimensions].

    There are no dimensions if devices have no coordinates, or are GPUs, whose coordinates number
    hosts and the GPUs of each.
    """
    flat: list[Any] = list(mesh.devices.flat)
    slices = np.array([[getattr(device, "slice_index", 0)] for device in flat])
    in_torus = flat[0].platform == "tpu"
    coordinates = np.array([device.coords if in_torus else () for device in flat], dtype=int)
    return slices, coordinates.reshape(len(flat), -1)


def _varying(coordinates: np.ndarray) -> tuple[int, ...]:
    """Return the coordinates in which members of a group differ; [groups, members, coordinates]."""
    return tuple(
        int(n) for n in np.flatnonzero((coordinates != coordinates[:, :1]).any(axis=(0, 1)))
    )
