"""NVIDIA GPUs: their published properties, descriptions to compile for, and bounds on training."""

import dataclasses
import importlib.util
import os
from typing import ClassVar

import jax
from jax.experimental import topologies

from t5x_like.training import flops

EXTRA = "plan-gpu"  # the extra of setup.py that installs the compiler
# Autotuning runs kernels, so it needs a GPU. Without it XLA's Triton kernels for matrix products
# have no tiles for some shapes, and cuBLAS computes the products. Fusions of products with slices
# would then compute some products twice, which a traced H100 did not (docs/plans.md).
OPTIONS = {
    "xla_gpu_autotune_level": 0,
    "xla_gpu_enable_triton_gemm": False,
    "xla_gpu_enable_dynamic_slice_fusion": False,
}
_SHARE = 0.75  # of a GPU's memory, which JAX takes by default
_SHARE_SETTINGS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What GPUs of one compute capability have in common.

    Attributes:
        capability: CUDA's compute capability.
        shared_memory: bytes of a core.
        threads: threads of a core at most.
        float_units: float32 units of a core.
    """

    capability: tuple[int, int]
    shared_memory: int
    threads: int
    float_units: int


@dataclasses.dataclass(frozen=True)
class Gpu:
    """The properties of a GPU. Its peak FLOP/s is in training/flops.py.

    Attributes:
        kind: JAX's name for it (`device_kind`).
        total_memory: bytes that CUDA reports.
        memory_bandwidth: bytes/s.
        link_bandwidth: bytes/s of its links to the other GPUs of a host, each way.
        network_bandwidth: bytes/s of its share of the network between hosts, each way; None if it
            is not published.
        architecture: what other GPUs of its compute capability have, too.
        cores: streaming multiprocessors.
        clock: GHz at most.
        l2_cache: bytes.
    """

    kind: str
    total_memory: int
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float | None
    architecture: Architecture
    cores: int
    clock: float
    l2_cache: int

    # What a chip of TPUs has, too: a GPU is one device, and one switch connects the GPUs of a host.
    devices: ClassVar[int] = 1
    dimensions: ClassVar[int] = 1
    # Peaks relative to bfloat16: 8-bit types, and float32 as XLA computes it by default, in TF32.
    ratios: ClassVar[dict[str, float]] = {"s8": 2.0, "f8": 2.0, "f32": 0.5}

    @property
    def memory(self) -> float:
        """Bytes that a program can use: the share that JAX takes in this environment."""
        shares = [os.environ[name] for name in _SHARE_SETTINGS if os.environ.get(name)]
        return self.total_memory * (float(shares[0]) if shares else _SHARE)

    @property
    def peak_flops(self) -> float:
        """Dense FLOP/s in bfloat16."""
        peak = flops.peak_of_kind(self.kind)
        assert peak is not None
        return peak

    @property
    def description(self) -> str:
        """The target of a compilation, as the text of XLA's GpuTargetConfigProto."""
        like = self.architecture
        major, minor = like.capability
        return f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  core_count: {self.cores}
  fpus_per_core: {like.float_units}
  clock_rate_ghz: {self.clock}
  device_memory_size: {self.total_memory}
  memory_bandwidth: {self.memory_bandwidth:.0f}
  l2_cache_size: {self.l2_cache}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {like.shared_memory - 1024}
  shared_memory_per_core: {like.shared_memory}
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: {like.threads}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 19 }}
runtime_version {{ major: 13 }}
device_description_str: "{self.kind}"
"""


# Memory bandwidths and links: NVIDIA's datasheets of A100 (SXM4, 80 GB), H100 (SXM5; PCIe), H200
# (SXM) and L4; NVLink's and PCIe's published figures are of both directions together. Networks:
# the datasheets of DGX A100, H100 and H200, with an adapter for each of the eight GPUs, of 200 or
# 400 Gbit/s. Cores, clocks, caches and the memory that CUDA reports: XLA's own descriptions
# (xla/backends/gpu/target_config/specs) and, for the L4, CUDA's deviceQuery; memory, threads and
# units of a core: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability",
# and "Throughput of Native Arithmetic Instructions".
_MIB = 2**20
_AMPERE = Architecture((8, 0), shared_memory=167_936, threads=2048, float_units=64)
_ADA = Architecture((8, 9), shared_memory=102_400, threads=1536, float_units=128)
_HOPPER = Architecture((9, 0), shared_memory=233_472, threads=2048, float_units=128)
GPUS = {
    "a100": Gpu(
        "NVIDIA A100-SXM4-80GB",
        total_memory=85_100_068_864,
        memory_bandwidth=2.039e12,
        link_bandwidth=3.0e11,
        network_bandwidth=2.5e10,
        architecture=_AMPERE,
        cores=108,
        clock=1.41,
        l2_cache=40 * _MIB,
    ),
    "h100_pcie": Gpu(
        "NVIDIA H100 PCIe",
        total_memory=84_942_979_072,
        memory_bandwidth=2.0e12,
        link_bandwidth=6.4e10,
        network_bandwidth=None,
        architecture=_HOPPER,
        cores=114,
        clock=1.755,
        l2_cache=50 * _MIB,
    ),
    "h100": Gpu(
        "NVIDIA H100 80GB HBM3",
        total_memory=84_942_979_072,
        memory_bandwidth=3.35e12,
        link_bandwidth=4.5e11,
        network_bandwidth=5.0e10,
        architecture=_HOPPER,
        cores=132,
        clock=1.98,
        l2_cache=50 * _MIB,
    ),
    "h200": Gpu(
        "NVIDIA H200",
        total_memory=151_397_597_184,
        memory_bandwidth=4.8e12,
        link_bandwidth=4.5e11,
        network_bandwidth=5.0e10,
        architecture=_HOPPER,
        cores=132,
        clock=1.98,
        l2_cache=50 * _MIB,
    ),
    "l4": Gpu(
        "NVIDIA L4",
        total_memory=23_612_293_120,
        memory_bandwidth=3.0e11,
        link_bandwidth=3.2e10,
        network_bandwidth=None,
        architecture=_ADA,
        cores=58,
        clock=2.04,
        l2_cache=48 * _MIB,
    ),
}


def has_compiler() -> bool:
    """Return whether JAX's plugin for CUDA is installed, which compiles for GPUs without a GPU."""
    return importlib.util.find_spec("jax_cuda13_plugin") is not None


def described(gpu: Gpu, *, hosts: int, each: int) -> list[jax.Device]:
    """Return descriptions of the GPUs of some hosts, which can be compiled for and not used.

    Args:
        gpu: the GPU.
        hosts: the number of hosts.
        each: GPUs of a host.

    Raises:
        jax.errors.JaxRuntimeError: the plugin refuses the description.
    """
    # The plugin only compiles here, and may find neither a driver nor a GPU.
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    return topologies.get_topology_desc(
        platform="cuda", target_config=gpu.description, topology=f"1x{hosts}x{each}"
    ).devices


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
        left=gpu.total_memory - state,
        update_seconds=(state + parameters + optimizer) / gpu.memory_bandwidth,
    )
