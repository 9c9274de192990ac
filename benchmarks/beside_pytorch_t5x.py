"""T5X's side of a row of benchmarks/beside_pytorch.py: its trainer's step, on random weights.

The network is t5x/examples/t5, whose layers are not in a loop, in float32, with T5X's Adafactor.
"""

import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import t5x_model
from benchmarks.beside_pytorch_rows import NETWORKS, Row

_GIN = "t5x/examples/t5/t5_1_1/small.gin"


def train(row: Row, side: str, folder: pathlib.Path) -> Callable[[], float]:
    """Return the trainer's step on one batch, a function that returns the loss.

    The source of T5X is in `sys.path`.
    """
    del side, folder
    [source] = (path for path in sys.path if pathlib.Path(path, _GIN).is_file())
    model = t5x_model.build(
        _GIN,
        imports=[("t5x.examples.t5", "network")],
        bindings={"Z_LOSS": 0.0} | {f"network.T5Config.{k}": v for k, v in _sizes(row).items()},
        sources=[source],
    )
    partitioning, trainer, utils = (
        importlib.import_module(f"t5x.{name}") for name in ("partitioning", "trainer", "utils")
    )
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    batch = _batch(row)
    initializer = utils.TrainStateInitializer(
        model.optimizer_def,
        model.get_initial_variables,
        {name: x.shape for name, x in batch.items()},
        partitioner,
        dict.fromkeys(batch, jnp.int32),
    )
    held = [initializer.from_scratch(jax.random.PRNGKey(0))]
    step = trainer.Trainer(
        model=model,
        train_state=held[0],
        partitioner=partitioner,
        eval_names=(),
        summary_dir=None,
        train_state_axes=initializer.train_state_axes,
        rng=jax.random.PRNGKey(0),
        learning_rate_fn=lambda step: 1e-4,
        num_microbatches=None,
    )._partitioned_train_step

    def take() -> float:
        held[0], metrics = step(held[0], batch)
        jax.block_until_ready(held[0])
        return float(metrics["cross_ent_loss"].compute()) / (row.rows * row.targets)

    return take


def _sizes(row: Row) -> dict[str, Any]:
    """Return T5X's settings of the row's network, in gin's notation."""
    _, _, network = NETWORKS[row.network]
    return {
        "vocab_size": network["vocab_size"],
        "emb_dim": network["d_model"],
        "num_heads": network["num_heads"],
        "num_encoder_layers": network["num_layers"],
        "num_decoder_layers": network["num_decoder_layers"],
        "mlp_dim": network["d_ff"],
        "dtype": "'float32'",
    }


def _batch(row: Row) -> dict[str, np.ndarray]:
    tokens = row.tokens("targets").astype(np.int32)
    return {
        "encoder_input_tokens": row.tokens("inputs").astype(np.int32),
        "decoder_input_tokens": tokens[:, :-1],
        "decoder_target_tokens": tokens[:, 1:],
        "decoder_loss_weights": np.ones((row.rows, row.targets), np.int32),
    }
