"""The rows of benchmarks/beside_flax.py: a training step in our settings and in the other side's.

    python -m t5x_like.plan --config=benchmarks/beside_flax_rows.py:t5_xxl_v4 --topology=v4:4x4x4

Both have parameters and optimizer in float32 and products in bfloat16. Rows of a batch are counted
in all. T5 has rows of 512 inputs and 114 targets, the lengths of span corruption, and no dropout,
as v1.1 in pretraining; Adafactor; and the remat of T5X's configs, `minimal`. Switch-C has full
remat, the only one of Flaxformer's loop over layers with experts. That loop does not support the
router's losses: they are left out there, and not here. BERT has the dropout, the clipping and the
AdamW of its paper; its loop over layers keeps the results of all products, where theirs, without a
loop and remat, leaves the choice to the compiler.
"""

import functools
from typing import Any

import ml_collections

from benchmarks.compiled_beside import Row
from configs import bert, switch, t5
from t5x_like.experiment import recipes

_LENGTHS = {"inputs": 512, "targets": 114}
# T5X's base config has the loss, Adafactor, remat and the scan over layers; XXL's only adds sizes.
# T5X has no scanned 11B: the sizes are from t5x/examples/t5/t5_1_0/11B.gin.
_T5X_BASE = "t5x/examples/scalable_t5/t5_1_1"
_11B = {
    "emb_dim": 1024,
    "num_heads": 128,
    "num_encoder_layers": 24,
    "num_decoder_layers": 24,
    "head_dim": 128,
    "mlp_dim": 65536,
    "mlp_activations": ("relu",),
    "logits_via_embedding": True,
}


def _t5_config(
    size: str, *, rows: int, attention: str, fsdp: int, tensor: int
) -> ml_collections.ConfigDict:
    config = t5.get_config(size)
    config.model.update(
        dtype="bfloat16", remat="dots_with_no_batch_dims", dropout=0.0, attention=attention
    )
    config.mesh.update(data=1, fsdp=fsdp, expert=1, model=tensor)
    config.data.lengths = _LENGTHS
    config.data.batch_size = rows
    return config


def _t5(
    title: str,
    size: str,
    gin: str,
    network: dict[str, Any],
    *,
    rows: int,
    attention: str = "dense",
) -> Row:
    """Return a row of a T5 on 64 chips of v4, 16-way `fsdp` and 4-way `model`.

    T5X's mesh has `data` and `model`; with parameters in two dimensions, `data` also shards them.

    Args:
        title: the model.
        size: our name of the size.
        gin: T5X's config.
        network: its settings of the network that differ.
        rows: rows of the batch.
        attention: our `model.attention`; T5X has no kernel for its bias.
    """
    settings = {
        "program": "t5x",
        "sources": ("t5x",),
        "gin": gin,
        "imports": [("t5x.examples.scalable_t5", "network")],
        "bindings": {f"network.T5Config.{name}": repr(value) for name, value in network.items()},
        "rows": rows,
        "lengths": _LENGTHS,
        "submesh": (4, 1, 1, 1),
        "mesh": {"data": 16, "model": 4},
    }
    title = f"{title}, fsdp 16 x tensor 4, products kept, {rows} rows, {attention} attention"
    config = functools.partial(_t5_config, size, rows=rows, attention=attention, fsdp=16, tensor=4)
    return Row(title, "v4:4x4x4", config, settings)


_FLAXFORMER = [
    ("flaxformer.architectures.moe", "moe_architecture"),
    ("flaxformer.architectures.t5", "t5_architecture"),
    ("flaxformer.architectures.moe", "routing"),
    ("flaxformer.components", "relative_position_biases"),
]


def _flaxformer_loop() -> dict[str, str]:
    """Return the bindings of a loop over layers in which nothing is kept.

    They are the lines of flaxformer/t5x/configs/moe/runs/scan.gin, without Adafactor's, whose names
    T5X's newest source does not have. The router's outputs are in bfloat16, its default without
    gin, since the input and output of a loop need one type.
    """
    bindings = {
        "t5_architecture.EncoderDecoder.scan_layers": "True",
        "routing.TokensChooseMaskedRouter.dtype": "'bfloat16'",
    }
    for side in ("Encoder", "Decoder"):
        stack = f"moe_architecture.Sparse{side}"
        bindings |= {
            f"{stack}.scan_layers": "True",
            f"{stack}.layer_remat": "'full'",
            f"{stack}.shared_relative_position_bias_factory": "None",
        }
        for layer in (f"{stack}Layer", f"t5_architecture.{side}Layer"):
            factory = "@relative_position_biases.RelativePositionBiases"
            bindings[f"{layer}.relative_position_bias_factory"] = factory
    return bindings


def _switch_config(*, rows: int, expert: int, tensor: int) -> ml_collections.ConfigDict:
    config = switch.get_config("c_2048")
    config.model.update(dtype="bfloat16", remat="full", dropout=0.0, jitter=0.0, attention="dense")
    config.mesh.update(data=1, fsdp=1, expert=expert, model=tensor)
    config.data.lengths = _LENGTHS
    config.data.batch_size = rows
    return config


def _switch(*, rows: int, expert: int, tensor: int) -> Row:
    """Return a row of Switch-C on 1,024 chips of v4."""
    parts = {"NUM_MODEL_PARTITIONS": str(tensor), "NUM_EXPERT_PARTITIONS": str(expert)}
    settings = {
        "program": "t5x",
        "sources": ("t5x", "flaxformer"),
        "gin": "flaxformer/t5x/configs/moe/models/switch_c.gin",
        "imports": _FLAXFORMER,
        "bindings": parts | _flaxformer_loop(),
        "rows": rows,
        "lengths": _LENGTHS,
        "submesh": (tensor, 1, 1, 1),
        "mesh": {"data": 1, "expert": expert, "model": tensor},
    }
    title = f"Switch-C, expert {expert} x tensor {tensor}, full remat, {rows:,} rows"
    config = functools.partial(_switch_config, rows=rows, expert=expert, tensor=tensor)
    return Row(title, "v4:8x8x16", config, settings)


def _bert_config(length: int, *, rows: int, data: int) -> ml_collections.ConfigDict:
    config = bert.get_config("large")
    config.train.phases = ()
    config.phases = ml_collections.ConfigDict()
    config.train.steps = 1_000_000
    config.model.update(dtype="bfloat16", remat="dots")
    config.mesh.update(data=data, fsdp=1, expert=1, model=1)
    config.data.lengths.inputs = length
    config.data.batch_size = rows
    return config


def _bert(length: int, *, rows: int) -> Row:
    """Return a row of BERT large with data parallelism on 8 chips of v5e."""
    settings = {
        "program": "transformers",
        "model": {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
        "rows": rows,
        "lengths": {"inputs": length},
        "mesh": {"data": 8},
    }
    title = f"BERT large, data 8, products kept, {rows} rows of {length}"
    return Row(
        title, "v5e:2x4", functools.partial(_bert_config, length, rows=rows, data=8), settings
    )


_xxl = functools.partial(_t5, "T5 1.1 XXL", "xxl", f"{_T5X_BASE}/xxl.gin", {}, rows=512)
_11b = functools.partial(_t5, "T5 11B", "v1_0_11b", f"{_T5X_BASE}/base.gin", _11B, rows=256)
ROWS = {
    "t5_xxl_v4": _xxl(),
    "t5_xxl_v4_kernel": _xxl(attention="relative_flash"),
    "t5_11b_v4": _11b(),
    "t5_11b_v4_kernel": _11b(attention="relative_flash"),
    "switch_c_v4": _switch(rows=2048, expert=512, tensor=2),
    "bert_large_v5e": _bert(128, rows=256),
}


def get_config(name: str = "t5_xxl_v4") -> ml_collections.ConfigDict:
    """Return our config of a row, as the file of a command's `--config`."""
    recipes.check_size("beside_flax_rows", name, ROWS, kind="row")
    config = ROWS[name].config()
    config.workdir = f"runs/beside_flax/{name}"
    return config
