"""Layouts of the largest models, each compiled for the slice in TOPOLOGIES (docs/plans.md).

    python -m t5x_like.plan --config=configs/plans.py:gpt3_175b_v4 --topology=v4:12x16x16
    make plans                               compiles all plans, and rewrites docs/plans.md

Each is the paper's config in bfloat16, with a mesh, microbatches and remat that fit the slice, and
the batch of the paper's largest run. A comment explains any other change. They can be trained.
"""

from typing import Any

import ml_collections

from configs import bert, gpt3, llama, palm, ppo, switch, t5
from t5x_like.experiment import recipes

TOPOLOGIES = {
    "t5_11b_v4": "v4:8x8x8",
    "t5_11b_v5e": "v5e:16x16",
    "bert_large_v3": "v3:4x4",
    "gpt3_175b_v4": "v4:12x16x16",
    "palm_540b_v4": "v4:12x16x16",
    "llama_65b_v5p": "v5p:8x8x8",
    "switch_xxl_v4": "v4:8x8x16",
    "switch_c_v4": "v4:8x8x16",
    "ppo_175b_v5p": "v5p:8x8x8",
}


def get_config(name: str = "t5_11b_v4") -> ml_collections.ConfigDict:
    """Return the config of one of the plans above."""
    recipes.check_size("plans", name, _PLANS, kind="plan")
    config, changes = _PLANS[name]
    made = config()
    made.workdir = f"runs/{name}"
    made.model.dtype = "bfloat16"
    made.model.remat = "dots_with_no_batch_dims"
    made.update_from_flattened_dict(changes)
    return made


def _mesh(**axes: int) -> dict[str, int]:
    return {"mesh.data": 1, **{f"mesh.{axis}": size for axis, size in axes.items()}}


_LONG_T5 = {"data.batch_size": 2048, "train.steps": 1_000_000}
_PLANS: dict[str, tuple[Any, dict[str, Any]]] = {
    # 2^11 rows for a million steps, as for the paper's final models (section 3.7).
    "t5_11b_v4": (
        lambda: t5.get_config("v1_0_11b"),
        _mesh(fsdp=128, model=4) | _LONG_T5,
    ),
    "t5_11b_v5e": (
        lambda: t5.get_config("v1_0_11b"),
        _mesh(fsdp=64, model=4) | _LONG_T5 | {"train.microbatches": 4},
    ),
    "bert_large_v3": (
        lambda: bert.get_config("large"),
        _mesh(fsdp=32),
    ),
    # 1,536 rows (3.1 million tokens) instead of 1,600, to divide among 768 groups of 4 chips.
    # 50,257 is odd and cannot be sharded: the embedding table gets 47 unused rows.
    "gpt3_175b_v4": (
        lambda: _one_batch(gpt3.get_config("175b"), rows=1536),
        _mesh(fsdp=768, model=4)
        | {
            "model.vocab_size": 50304,
            "train.microbatches": 2,
        },
    ),
    # Half of the 2,048 rows of the last phase, since the paper has two such slices. The vocabulary
    # is padded, since 256,000 is not a multiple of 12.
    "palm_540b_v4": (
        lambda: _one_batch(palm.get_config("540b"), rows=1024),
        _mesh(fsdp=256, model=12)
        | {
            "model.vocab_size": 256512,
            "train.microbatches": 4,
        },
    ),
    # With fsdp over all 512 chips, the compiler would all-reduce whole matrices to exchange slices
    # of 16.
    "llama_65b_v5p": (
        lambda: llama.get_config("65b"),
        _mesh(fsdp=128, model=4) | {"train.microbatches": 4},
    ),
    "switch_xxl_v4": (
        lambda: switch.get_config("xxl_128"),
        _mesh(fsdp=2, expert=128, model=4),
    ),
    "switch_c_v4": (
        lambda: switch.get_config("c_2048"),
        _mesh(expert=512, model=2),
    ),
    # Keeping more of each layer than its input, for nine rows per chip, would not fit.
    "ppo_175b_v5p": (lambda: ppo.get_config("175b"), {"model.remat": "attention"}),
}


def _one_batch(config: ml_collections.ConfigDict, *, rows: int) -> ml_collections.ConfigDict:
    """Return the config with a single batch size instead of phases, and as many examples in total.

    Learning rate and warmup stay as for the paper's batches.
    """
    sizes = [(phase["batch_size"], phase["steps"]) for phase in config.phases.values()]
    config.train.phases = ()
    config.phases = ml_collections.ConfigDict()
    config.data.batch_size = rows
    config.train.steps = round(sum(size * steps for size, steps in sizes) / rows)
    return config
