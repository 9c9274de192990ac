"""Presets of XLA compiler options for training steps."""

from t5x_like.names import choose

Options = dict[str, bool | int]

# {preset: {platform of the devices: options}}. TPU options are named as in libtpu 0.0.42, which
# rejects unknown names; GPU options are jaxlib's debug options.
_PRESETS: dict[str, dict[str, Options]] = {
    "default": {},
    # All-gathers and reductions overlap with the computation of other layers.
    "overlap": {
        "tpu": {
            "xla_enable_async_all_gather": True,
            "xla_tpu_enable_async_collective_fusion": True,
            "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
            "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
            "xla_tpu_overlap_compute_collective_tc": True,
            "xla_tpu_enable_data_parallel_all_reduce_opt": True,
            "xla_tpu_data_parallel_opt_different_sized_ops": True,
        },
        # JAX 0.10's options for pipelined collectives are unknown to JAX 0.11.
        "gpu": {"xla_gpu_enable_latency_hiding_scheduler": True},
    },
    # Kernels sharded over `fsdp` are gathered before their products, not multiplied in a loop shard
    # by shard: the threshold is in MiB, above all arrays.
    "gathered_kernels": {"tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000}},
    # Fusions on a TPU may use 96 MiB of on-chip memory, which v5e, v5p and v6e have.
    "large_vmem": {"tpu": {"xla_tpu_scoped_vmem_limit_kib": 98304}},
}


def find(preset: str) -> dict[str, Options]:
    """Return {platform: options} of a preset of `train.compiler`; {} for the default.

    Raises:
        ValueError: the preset is unknown.
    """
    return choose("train.compiler", preset, _PRESETS)


def options(preset: str, platform: str) -> Options:
    """Return the options of a preset for devices of this platform.

    Raises:
        ValueError: the preset is unknown, or it has no options for this platform.
    """
    by_platform = find(preset)
    if by_platform and platform not in by_platform:
        raise ValueError(
            f"train.compiler={preset!r} is for {' and '.join(by_platform)}, and the devices are "
            f"{platform}: set train.compiler='default'"
        )
    return by_platform.get(platform, {})
