"""Topologies to plan for by their names: slices of TPUs, hosts of GPUs, simulated devices.

Memory, bandwidths and descriptions of TPUs to compile for. For GPUs they are in gpus.py.
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
from t5x_like.research.planning import gpus
from t5x_like.research.planning.gpus import GPUS, Gpu

EXTRA = "plan"  # the extra of setup.py that installs libtpu
_GIB = 2**30
_MOST_SIMULATED = 4096
_FORM = "v4:12x16x16, v5e:4x4, h100:1x8 or cpu:8"


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

    @property
    def ratios(self) -> dict[str, float]:
        """Peaks for other types than bfloat16, relative to its peak."""
        return {"s8": self.int8}


# Memory is what libtpu 0.0.50 reports as available for a program that is too large (a test checks
# it; 0.0.42 has up to 10 MiB more); it reserves some of the 16 GiB of a v2 chip, 32 of v3 or v4,
# 16 of v5e, 95 GB of v5p, 32 of v6e and 192 of tpu7x. Memory bandwidths and int8 peaks:
# cloud.google.com/tpu/docs/v3, v4, v5e, v5p, v6e, tpu7x, "System architecture"; they also have
# the data center network's bandwidth: 6.4 Tbit/s for the 256 chips of a v5e pod, 50 Gbit/s for a
# v5p chip, 25.6 Tbit/s for the 256 chips of a v6e pod, 100 Gbit/s for a tpu7x chip. Links, and
# when they close to rings: Austin et al. 2025, "How to Scale Your Model", part 2
# (jax-ml.github.io/scaling-book/tpus), the tables of key takeaways: v4 and v5p join the ends of
# whole cubes of 4 by optical switches, v3, v5e and v6e only the ends of a whole pod's side.
# tpu7x: its page above, a 3D torus as v5p's, of links with 1200 GB/s a chip, both directions
# together. v2: Jouppi et al. 2020, "A Domain-Specific Supercomputer for Training Deep Neural
# Networks": 700 GB/s of memory, four links of 496 Gbit/s each way, pods of 16 x 16 chips.
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
        95.73 * _GIB,
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
        31.24 * _GIB,
        1.638e12,
        1.0e11,
        2,
        16,
        kind="TPU v6 lite",
        int8=2.0,
        network_bandwidth=1.25e10,
    ),
    "tpu7x": Chip(
        94.74 * _GIB,
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
    """What compiles for these devices is not installed: libtpu, or JAX's plugin for CUDA."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """The devices to plan for.

    Attributes:
        name: the name as given, `v4:12x16x16`.
        chip: the generation of chips, or the GPU; None for simulated CPU devices.
        shape: the sides of a slice in chips; hosts and the GPUs of each; or the number of simulated
            devices.
        slices: the number of such slices, which the data center network connects.
    """

    name: str
    chip: Chip | Gpu | None
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def links(self) -> tuple[int, ...]:
        """The links of a chip along each dimension: 2 on a ring, 1 at the end of a line.

        A GPU has one link, to the switch of its host.
        """
        if self.chip is None:
            return ()
        if isinstance(self.chip, Gpu):
            return (1,)
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

    @property
    def network(self) -> str:
        """What the network connects that is slower than the links: "slices", or "hosts" of GPUs."""
        return "hosts" if isinstance(self.chip, Gpu) else "slices"

    @property
    def crosses_network(self) -> bool:
        """Whether there are several slices, or several hosts of GPUs."""
        return (self.shape[0] if isinstance(self.chip, Gpu) else self.slices) > 1

    def devices(self) -> list[jax.Device]:
        """Return the devices: descriptions for TPUs and GPUs, simulated devices for `cpu:8`.

        Raises:
            NoCompilerError: what compiles for these devices is not installed.
            ValueError: libtpu does not know the slice, or JAX has started with fewer devices.
        """
        if self.chip is None:
            return _simulated(self.shape[0])
        self._check_compiler()
        try:
            if isinstance(self.chip, Gpu):
                hosts, each = self.shape
                return gpus.described(self.chip, hosts=hosts, each=each)
            # libtpu only compiles here, so another process may hold the chips.
            os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
            return topologies.get_topology_desc(
                platform="tpu",
                topology_name=self.name,
                chip_config_name=self.chip.tpu_config,
                num_slices=self.slices,
            ).devices
        except jax.errors.JaxRuntimeError as error:
            raise ValueError(f"--topology={self.name}: {error}") from error

    def _check_compiler(self) -> None:
        """Raise NoCompilerError if what compiles for the chips is not installed."""
        if isinstance(self.chip, Gpu):
            installed, needed, extra = gpus.has_compiler(), "JAX's plugin for CUDA", gpus.EXTRA
        else:
            installed = importlib.util.find_spec("libtpu") is not None
            needed, extra = "libtpu, the TPU's compiler", EXTRA
        if not installed:
            raise NoCompilerError(
                f"--topology={self.name} needs {needed}, which compiles on any machine with Linux "
                f"on x86-64: pip install 't5x_like[{extra}]' (in a clone: pip install -e "
                f"'.[{extra}]')"
            )


def topology(name: str, *, slices: int = 1) -> Topology:
    """Parse a topology: `v4:12x16x16`, a generation and the sides of a slice; `h100:4x8`; `cpu:8`.

    Args:
        slices: the number of slices of TPUs.

    Raises:
        ValueError: the text has another form, a generation that is not in CHIPS or GPUS, or a wrong
            number of sides; `slices` is below 1, or above 1 for other devices than TPUs.
    """
    generation, _, sides = name.partition(":")
    known: dict[str, Chip | Gpu | None] = {"cpu": None, **CHIPS, **GPUS}
    chip = choose("--topology", generation, known)
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", sides):
        raise ValueError(
            f"--topology={name!r} is not a chip and a shape: write for example {_FORM}"
        )
    shape = tuple(int(side) for side in sides.split("x"))
    like, of_gpus = _example(chip), isinstance(chip, Gpu)
    if len(shape) != len(like.split("x")):
        number = len(like.split("x"))
        raise ValueError(
            f"--topology={name!r}: the shape for {generation} has {number} "
            f"side{'s' * (number > 1)}, as {generation}:{like}"
            f"{', hosts and the GPUs of each' * of_gpus}"
        )
    if slices < 1:
        raise ValueError(f"--slices={slices} must be 1 or more")
    if slices > 1 and chip is None:
        raise ValueError(
            f"--slices={slices}: simulated devices have no slices; name a TPU's, as "
            "--topology=v5e:4x4"
        )
    if slices > 1 and of_gpus:
        raise ValueError(
            f"--slices={slices}: GPUs have no slices; name their hosts, as "
            f"--topology={generation}:{slices}x8"
        )
    return Topology(name, chip, shape, slices)


def _example(chip: Chip | Gpu | None) -> str:
    """Return a shape of the right number of sides."""
    if isinstance(chip, Gpu):
        return "1x8"
    return "8" if chip is None else {2: "4x4", 3: "4x4x4"}[chip.dimensions]


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
