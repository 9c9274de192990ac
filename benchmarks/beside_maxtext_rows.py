"""The rows of benchmarks/beside_maxtext.py: a training step in our settings and in MaxText's.

    python -m t5x_like.plan --config=benchmarks/beside_maxtext_rows.py:llama2_7b_v5e \
        --topology=v5e:4x4

Both have parameters and AdamW's moments in float32, products in bfloat16, rows of 2,048 tokens, and
splash attention. Rows of a batch are counted as MaxText does, for each chip. Mixtral's experts drop
no token on either side.
"""

from collections.abc import Mapping
from typing import Any

import ml_collections

from benchmarks.compiled_beside import Row
from configs import published_runs
from t5x_like.experiment import recipes
from t5x_like.systems import gemma, llama, mixtral

TOKENS = 2048  # of a row
# MaxText's names of slices: of v5e by their chips, of v5p by their cores.
_SLICES = {"v5e:2x4": "v5e-8", "v5e:4x4": "v5e-16", "v5p:2x2x4": "v5p-32"}
_REMAT = {"full": "full", "dots_with_no_batch_dims": "minimal"}
_SETTINGS = {
    "max_target_length": TOKENS,
    "attention": "flash",  # the splash kernel on TPUs
    "dtype": "bfloat16",
    "weight_dtype": "float32",
    "opt_type": "adamw",
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "compile_topology_num_slices": 1,
}


def _row(
    title: str,
    model_name: str,
    model: Mapping[str, Any],
    topology: str,
    *,
    system: str = "llama",
    rows: int,
    fsdp: int,
    tensor: int = 1,
    expert: int = 1,
    remat: str = "full",
) -> Row:
    """Return a row.

    Args:
        title: the model.
        model_name: MaxText's name of the model.
        model: our size.
        topology: a key of _SLICES.
        system: our name of the system.
        rows: rows of each chip in a step.
        fsdp, tensor, expert: the mesh; `tensor` is `mesh.model` here.
        remat: a key of _REMAT.
    """

    def config() -> ml_collections.ConfigDict:
        made = published_runs.decoder(
            model,
            system=system,
            rows=rows,
            fsdp=fsdp,
            tensor=tensor,
            expert=expert,
            tokens=TOKENS,
            remat=remat,
        )
        made.model.attention = "splash"
        return made

    others = {"tensor": tensor, "expert": expert}
    layout = f"fsdp {fsdp}" + "".join(f" x {axis} {n}" for axis, n in others.items() if n > 1)
    kept = {"full": "full remat", "dots_with_no_batch_dims": "products kept"}[remat]
    plural = "s" if rows > 1 else ""
    settings = {
        "model_name": model_name,
        "compile_topology": _SLICES[topology],
        "per_device_batch_size": rows,
        "ici_fsdp_parallelism": fsdp,
        "ici_tensor_parallelism": tensor,
        "ici_expert_parallelism": expert,
        "remat_policy": _REMAT[remat],
    }
    title = f"{title}, {layout}, {kept}, {rows} row{plural}"
    return Row(title, topology, config, _SETTINGS | settings)


_LLAMA = ("LLaMA 2 7B", "llama2-7b", llama.SIZES["2_7b"])
# MaxText's table has 128 rows more than Gemma's vocabulary.
_GEMMA = ("Gemma 2B", "gemma-2b", dict(gemma.SIZES["2b"]) | {"vocab_size": 256_128})
_MIXTRAL = ("Mixtral 8x7B", "mixtral-8x7b", mixtral.SIZES["8x7b"])
ROWS = {
    "llama2_7b_v5e": _row(*_LLAMA, "v5e:4x4", rows=1, fsdp=16),
    "llama2_7b_v5e_4": _row(*_LLAMA, "v5e:4x4", rows=4, fsdp=16),
    "llama2_7b_v5p": _row(
        *_LLAMA, "v5p:2x2x4", rows=4, fsdp=8, tensor=2, remat="dots_with_no_batch_dims"
    ),
    "gemma_2b_v5e": _row(*_GEMMA, "v5e:2x4", system="gemma", rows=2, fsdp=8),
    "mixtral_8x7b_v5p": _row(*_MIXTRAL, "v5p:2x2x4", system="mixtral", rows=4, fsdp=16),
    "mixtral_8x7b_v5p_expert": _row(
        *_MIXTRAL, "v5p:2x2x4", system="mixtral", rows=4, fsdp=2, expert=8
    ),
}


def get_config(name: str = "llama2_7b_v5e") -> ml_collections.ConfigDict:
    """Return our config of a row, as the file of a command's `--config`."""
    recipes.check_size("beside_maxtext_rows", name, ROWS, kind="row")
    config = ROWS[name].config()
    config.workdir = f"runs/beside_maxtext/{name}"
    return config
