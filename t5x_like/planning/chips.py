"""Chips and slices: names, memory, bandwidths, and descriptions of TPUs to compile for.

For NVIDIA GPUs, the bounds for training on one.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re

import jax
from jax.experimental import topologies

from t5x_like.names import choose
from t5x_like.training import flops

EXTRA = "plan"  # the extra of setup.py that installs libtpu
_GIB = 2**30
_MOST_SIMULATED = 4096
_FORM = "v4:12x16x16, v5e:4x4 or cpu:8"


@dataclasses.dataclass(frozen=True)
class Chip:
    """The properties of a generation of chips. Its peak FLOP/s is in training/flops.py.

    A device is a JAX device: on v2, v3 and tpu7x half a chip, on v4 and v5p both cores of a chip.

    Attributes:
        memory: bytes of HBM that a program can use on one device.
        memory_bandwidth: bytes/s of a chip.
        link_bandwidth: bytes/s of one link to a neighbour, each way.
        network_bandwidth: bytes/s of a chip's share of the data center network, which connects
            slices; None if it is not published.
        dimensions: number of dimensions of the torus.
        full: a dimension of a slice is a ring if its length is a multiple of this.
        devices: JAX devices on a chip.
        tpu_config: libtpu's name for the way that the cores are used.
        int8: ratio of the int8 to the bfloat16 peak.
        kind: JAX's name for a device (`device_kind`).
    """

    memory: float
    memory_bandwidth: float
    link_bandwidth: float
    dimensions: int
    full: int
    devices: int = 1
    tpu_config: str = "default"
    int8: float = 1.0
    kind: str = ""
    network_bandwidth: float | None = None


# Memory is what libtpu 0.0.42 reports as available for a program that is too large (a test checks
# it); it reserves some of the 16 GiB of a v2 chip, 32 of v3 or v4, 16 of v5e, 95 GB of v5p, 32 of
# v6e and 192 of tpu7x. Memory bandwidths and int8 peaks: cloud.google.com/tpu/docs/v3, v4, v5e,
# v5p, v6e, tpu7x, "System architecture"; they also have the data center network's bandwidth: 6.4
# Tbit/s for the 256 chips of a v5e pod, 50 Gbit/s for a v5p chip, 25.6 Tbit/s for the 256 chips of
# a v6e pod, 100 Gbit/s for a tpu7x chip. Links, and when they close to rings: Austin et al. 2025,
# "How to Scale Your Model", part 2 (jax-ml.github.io/scaling-book/tpus), the tables of key
# takeaways: v4 and v5p join the ends of whole cubes of 4 by optical switches, v3, v5e and v6e only
# the ends of a whole pod's side. tpu7x: its page above, a 3D torus as v5p's, of links with 1200
# GB/s a chip, both directions together. v2: Jouppi et al. 2020, "A Domain-Specific Supercomputer
# for Training Deep Neural Networks": 700 GB/s of memory, four links of 496 Gbit/s each way, pods of
# 16 x 16 chips.
_CORES_TOGETHER = "megacore"
CHIPS = {
    "v2": Chip(7.48 * _GIB, 7.0e11, 6.2e10, 2, 16, kind="TPU v2", devices=2),
    "v3": Chip(15.48 * _GIB, 0.9e12, 1.0e11, 2, 32, kind="TPU v3", devices=2),
    "v4": Chip(30.75 * _GIB, 1.2e12, 4.5e10, 3, 4, kind="TPU v4", tpu_config=_CORES_TOGETHER),
    "v5e": Chip(
        15.75 * _GIB,
        8.19e11,
        5.0e10,
        2,
        16,
        kind="TPU v5 lite",
        int8=2.0,
        network_bandwidth=3.125e9,
    ),
    "v5p": Chip(
        95.74 * _GIB,
        2.765e12,
        1.0e11,
        3,
        4,
        kind="TPU v5",
        tpu_config=_CORES_TOGETHER,
        int8=2.0,
        network_bandwidth=6.25e9,
    ),
    "v6e": Chip(
        31.25 * _GIB,
        1.638e12,
        1.0e11,
        2,
        16,
        kind="TPU v6 lite",
        int8=2.0,
        network_bandwidth=1.25e10,
    ),
    "tpu7x": Chip(
        94.75 * _GIB,
        7.38e12,
        1.0e11,
        3,
        4,
        kind="TPU7x",
        devices=2,
        network_bandwidth=1.25e10,
    ),
}


class NoCompilerError(ValueError):
    """libtpu, which compiles for TPUs, is not installed."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """The devices to plan for.

    Attributes:
        name: the name as given, `v4:12x16x16`.
        chip: the generation of chips; None for simulated CPU devices.
        shape: the sides of a slice in chips, or the number of simulated devices.
        slices: the number of such slices, which the data center network connects.
    """

    name: str
    chip: Chip | None
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def links(self) -> tuple[int, ...]:
        """The links of a chip along each dimension: 2 on a ring, 1 at the end of a line."""
        if self.chip is None:
            return ()
        # Optical switches only join whole cubes; on other chips each side counts separately.
        cubes = self.chip.dimensions == 3
        rings = [size % self.chip.full == 0 for size in self.shape]
        return tuple(
            0 if size == 1 else 2 if (all(rings) if cubes else ring) and size > 2 else 1
            for size, ring in zip(self.shape, rings, strict=True)
        )

    @property
    def number(self) -> int:
        """The number of devices."""
        return self.slices * math.prod(self.shape) * (1 if self.chip is None else self.chip.devices)

    def devices(self) -> list[jax.Device]:
        """Return the devices: descriptions for a TPU, simulated devices for `cpu:8`.

        Raises:
            NoCompilerError: the topology is a TPU's, and libtpu is not installed.
            ValueError: libtpu does not know the slice, or JAX has started with fewer devices.
        """
        if self.chip is None:
            return _simulated(self.shape[0])
        if importlib.util.find_spec("libtpu") is None:
            raise NoCompilerError(
                f"--topology={self.name} needs libtpu, the TPU's compiler, which runs on any "
                f"machine with Linux on x86-64: pip install 't5x_like[{EXTRA}]' (in a clone: pip "
                f"install -e '.[{EXTRA}]')"
            )
        # libtpu only compiles here, so another process may hold the chips.
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        try:
            return topologies.get_topology_desc(
                platform="tpu",
                topology_name=self.name,
                chip_config_name=self.chip.tpu_config,
                num_slices=self.slices,
            ).devices
        except jax.errors.JaxRuntimeError as error:
            raise ValueError(f"--topology={self.name}: {error}") from error


def topology(name: str, *, slices: int = 1) -> Topology:
    """Parse a topology: `v4:12x16x16`, a generation and the sides of a slice; or `cpu:8`.

    Args:
        slices: the number of such slices.

    Raises:
        ValueError: the text has another form, a generation that is not in CHIPS, or a wrong number
            of sides; `slices` is below 1, or above 1 for simulated devices.
    """
    generation, _, sides = name.partition(":")
    chip = choose("--topology", generation, {"cpu": None, **CHIPS})
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", sides):
        raise ValueError(
            f"--topology={name!r} is not a chip and a shape: write for example {_FORM}"
        )
    shape = tuple(int(side) for side in sides.split("x"))
    dimensions = 1 if chip is None else chip.dimensions
    if len(shape) != dimensions:
        like = {1: "8", 2: "4x4", 3: "4x4x4"}[dimensions]
        raise ValueError(
            f"--topology={name!r}: the shape for {generation} has {dimensions} "
            f"side{'s' * (dimensions > 1)}, as {generation}:{like}"
        )
    if slices < 1:
        raise ValueError(f"--slices={slices} must be 1 or more")
    if slices > 1 and chip is None:
        raise ValueError(
            f"--slices={slices}: simulated devices have no slices; name a TPU's, as "
            "--topology=v5e:4x4"
        )
    return Topology(name, chip, shape, slices)


def _simulated(number: int) -> list[jax.Device]:
    if number > _MOST_SIMULATED:
        raise ValueError(
            f"--topology=cpu:{number}: each simulated device takes memory of this machine: at most "
            f"{_MOST_SIMULATED:,} allowed"
        )
    # This must be set before a backend starts; nothing here starts a backend earlier.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", number)
    devices = jax.devices("cpu")
    if len(devices) < number:
        raise ValueError(
            f"--topology=cpu:{number}: JAX has already started with {len(devices)} CPU devices"
        )
    return devices[:number]


@dataclasses.dataclass(frozen=True)
class Gpu:
    """The properties of one GPU. Its peak FLOP/s is in training/flops.py.

    Attributes:
        kind: JAX's name for it (`device_kind`).
        memory: bytes.
        memory_bandwidth: bytes/s.
    """

    kind: str
    memory: float
    memory_bandwidth: float

    @property
    def peak_flops(self) -> float:
        """Dense FLOP/s in bfloat16."""
        peak = flops.peak_of_kind(self.kind)
        assert peak is not None
        return peak


# Memory and bandwidth are from NVIDIA's datasheets of A100 (SXM4, 80 GB), H100 (SXM5; PCIe) and
# H200 (SXM).
GPUS = {
    "a100": Gpu("NVIDIA A100-SXM4-80GB", 80e9, 2.039e12),
    "h100_pcie": Gpu("NVIDIA H100 PCIe", 80e9, 2.0e12),
    "h100": Gpu("NVIDIA H100 80GB HBM3", 80e9, 3.35e12),
    "h200": Gpu("NVIDIA H200", 141e9, 4.8e12),
}


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds on training on one GPU, for any program.

    Attributes:
        sequences: maximum sequences per second, with model FLOPs at the peak.
        state: bytes of parameters, optimizer state and gradients.
        left: bytes that remain for activations and everything else; negative if it does not fit.
        update_seconds: minimum seconds per step to read the state once and write it back without
            the gradients.
    """

    sequences: float
    state: int
    left: float
    update_seconds: float


def bounds(gpu: Gpu, *, work: int, parameters: int, optimizer: int) -> Bounds:
    """Compute the bounds of a training step on one GPU.

    Args:
        gpu: the GPU.
        work: model FLOPs per sequence.
        parameters: bytes of the parameters; the gradients have as many.
        optimizer: bytes of the optimizer state.
    """
    state = 2 * parameters + optimizer
    return Bounds(
        sequences=gpu.peak_flops / work,
        state=state,
        left=gpu.memory - state,
        update_seconds=(state + parameters + optimizer) / gpu.memory_bandwidth,
    )
