"""NVIDIA GPUs: memory, bandwidth, and the resulting bounds for training on one GPU."""

import dataclasses

from t5x_like.training import flops


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
        parameters: bytes of the parameters, which equal those of the gradients.
        optimizer: bytes of the optimizer state.
    """
    state = 2 * parameters + optimizer
    return Bounds(
        sequences=gpu.peak_flops / work,
        state=state,
        left=gpu.memory - state,
        update_seconds=(state + parameters + optimizer) / gpu.memory_bandwidth,
    )
