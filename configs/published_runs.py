"""Training runs on TPUs whose utilization others have published, in the layouts of their scripts.

    python -m t5x_like.plan --config=configs/published_runs.py:32b_v5e --topology=v5e:16x16
    make plans                               compiles all, and compares them in docs/plans.md

Except for PaLM, all are decoders that MaxText trained, with parameters and AdamW in float32 and
products in bfloat16. Size, rows, mesh and remat are from its scripts: MaxText/configs/v5e/16b.sh,
v5p/64b.sh and so on, v5e and v5p/llama2_70b.sh, and for v6e training/trillium of
github.com/AI-Hypercomputer/tpu-recipes. Its remat `minimal` is `dots_with_no_batch_dims` here.
`save_dot_except_mlpwi` keeps more than `attention`, which recomputes the feed-forward's last
product too; `attention_on_host` offloads the output of attention besides queries, keys and values.
Where a mesh has tensor parallelism, MaxText also cuts the width of activations between layers;
here `train.sequence_parallel` cuts their positions.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_collections

from configs import llama, plans
from t5x_like.experiment import recipes
from t5x_like.systems.llama import SIZES


class PublishedRun(NamedTuple):
    """A run, and its utilization in model FLOPs.

    Attributes:
        title: the model.
        topology: the slice.
        utilization: a fraction of the peak.
        source: its number below the table in docs/plans.md.
        config: makes the config.
    """

    title: str
    topology: str
    utilization: float
    source: int
    config: Callable[[], ml_collections.ConfigDict]


def decoder(
    model: Mapping[str, Any],
    *,
    system: str = "llama",
    rows: int,
    fsdp: int,
    tensor: int = 1,
    expert: int = 1,
    tokens: int,
    remat: str,
) -> ml_collections.ConfigDict:
    """Return the config of a LLaMA, in MaxText's terms.

    Args:
        model: the size, with all settings.
        system: LLaMA, or a system with its training.
        rows: rows of each chip in a step.
        fsdp, tensor, expert: the mesh; `tensor` is MaxText's name of `mesh.model`.
        tokens: tokens of a row.
        remat: which activations are kept.
    """
    config = llama.get_config("7b")
    config.system = system
    config.model = dict(model)
    config.model.update(dtype="bfloat16", remat=remat, positions=tokens)
    config.mesh.update(data=1, fsdp=fsdp, expert=expert, model=tensor)
    config.train.sequence_parallel = tensor > 1
    config.data.lengths.targets = tokens
    config.data.batch_size = rows * fsdp * expert * tensor
    return config


def _scaled(scale: int) -> dict[str, Any]:
    """Return the size with about `scale` billion parameters.

    This is `get_individual_scales` in MaxText/pyconfig.py: of log2(scale), each 3 double layers,
    width, and heads and hidden units; what remains doubles the last, and if it is 2, the width too.
    """
    all_three, rest = divmod(scale.bit_length() - 1, 3)
    heads, width = 2 ** (all_three + (rest > 0)), 2 ** (all_three + (rest > 1))
    size = {"layers": 16 * 2**all_three, "d_model": 2048 * width, "d_ff": 7168 * heads}
    size |= {"heads": 16 * heads, "kv_heads": 16 * heads, "head_width": 128}
    return dict(SIZES["7b"]) | size


def _v5e(scale: int, utilization: float, *, rows: int) -> PublishedRun:
    size = _scaled(scale)
    config = functools.partial(decoder, size, rows=rows, fsdp=256, tokens=2048, remat="full")
    return PublishedRun(f"{scale}B, MaxText", "v5e:16x16", utilization, 4, config)


def _v5p(
    scale: int,
    topology: str,
    utilization: float,
    *,
    remat: str = "dots_with_no_batch_dims",
    **layout: Any,
) -> PublishedRun:
    config = functools.partial(decoder, _scaled(scale), tokens=2048, remat=remat, **layout)
    return PublishedRun(f"{scale}B, MaxText", topology, utilization, 5, config)


def _llama(
    version: str,
    topology: str,
    utilization: float,
    *,
    source: int,
    remat: str = "attention_on_host",
    **layout: Any,
) -> PublishedRun:
    title, size = {"2": ("2 70B", "2_70b"), "3": ("3.1 8B", "3_8b")}[version]
    config = functools.partial(decoder, SIZES[size], remat=remat, **layout)
    return PublishedRun(f"Llama {title}, MaxText", topology, utilization, source, config)


RUNS = {
    "16b_v5e": _v5e(16, 0.611, rows=6),
    "32b_v5e": _v5e(32, 0.6686, rows=4),
    "64b_v5e": _v5e(64, 0.599, rows=2),
    "32b_v5p": _v5p(32, "v5p:4x4x4", 0.7147, rows=7, fsdp=16, tensor=4),
    "64b_v5p": _v5p(64, "v5p:4x4x4", 0.7031, rows=3, fsdp=16, tensor=4),
    "128b_v5p": _v5p(128, "v5p:4x4x8", 0.6868, rows=1, fsdp=16, tensor=8),
    "256b_v5p": _v5p(256, "v5p:8x8x8", 0.6709, rows=1, fsdp=64, tensor=8),
    "512b_v5p": _v5p(512, "v5p:8x8x8", 0.6399, rows=2, fsdp=64, tensor=8, remat="full"),
    "llama2_70b_v5e": _llama("2", "v5e:16x16", 0.57, source=3, rows=2, fsdp=256, tokens=2048),
    "llama2_70b_v6e": _llama("2", "v6e:16x16", 0.438, source=1, rows=2, fsdp=256, tokens=4096),
    "llama3_8b_v6e": _llama("3", "v6e:16x16", 0.4546, source=1, rows=4, fsdp=256, tokens=8192),
    "llama2_70b_v5p": _llama(
        *("2", "v5p:8x8x8", 0.654), source=1, rows=4, fsdp=512, tokens=4096, remat="attention"
    ),
    # The run had two such slices, twice the rows, and another remat.
    "palm_540b_v4": PublishedRun(
        "PaLM 540B", "v4:12x16x16", 0.462, 2, lambda: plans.get_config("palm_540b_v4")
    ),
}


def get_config(name: str = "32b_v5e") -> ml_collections.ConfigDict:
    """Return the config of one of the runs above."""
    recipes.check_size("published_runs", name, RUNS, kind="run")
    config = RUNS[name].config()
    config.workdir = f"runs/{name}"
    return config
