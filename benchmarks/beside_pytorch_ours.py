"""This repository's side of benchmarks/beside_pytorch.py."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.beside_pytorch_rows import Row
from t5x_like import from_pretrained, systems
from t5x_like.training import optimizers, step

_OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "adamw": {"name": "adamw", "b2": 0.95, "weight_decay": 0.1},
    "adafactor": {"name": "adafactor"},
}
_RATE = {"learning_rate": 1e-4, "schedule": "constant"}


def train(row: Row, side: str, folder: pathlib.Path) -> Callable[[], float]:
    """Return the trainer's step on one batch, a function that returns the loss."""
    model = from_pretrained(folder, loop=side, **row.settings)
    module = model.module
    boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), module.example_batch()))
    axes = nn.get_partition_spec(boxed)["params"]
    optimizer, schedule = optimizers.build({**_OPTIMIZERS[row.optimizer], **_RATE}, axes=axes)
    loss = systems.find(model.system).task(model.config).loss

    def apply(params: Any, batch: Mapping[str, Any], rng: Any) -> Any:
        return loss(module, params, batch, rng)

    update = jax.jit(step.make_train_step(apply, optimizer, schedule=schedule), donate_argnums=0)
    held = [step.create_state(model.params, optimizer=optimizer, seed=0)]
    batch = {name: jnp.asarray(x) for name, x in _batch(row).items()}

    def take() -> float:
        held[0], metrics = update(held[0], batch)
        jax.block_until_ready(held[0])
        return float(metrics["loss"].compute())

    return take


def generate(row: Row, side: str, folder: pathlib.Path) -> Callable[[], list[list[int]]]:
    """Return a function that generates `targets` tokens after each prompt, without an end token."""
    model = from_pretrained(folder, dtype=row.dtype, loop=side)
    prompt = row.tokens("inputs")
    limits = {"max_new_tokens": row.targets, "min_new_tokens": row.targets}

    def take() -> list[list[int]]:
        found = model.generate(prompt, np.ones_like(prompt), num_beams=row.beams, **limits)
        return found[:, -row.targets :].tolist()

    return take


def product(row: Row, side: str, folder: pathlib.Path) -> Callable[[], None]:
    """Return a function that multiplies square matrices."""
    del side, folder
    matrix = jnp.ones((row.rows, row.rows))
    multiply = jax.jit(jnp.matmul)

    def take() -> None:
        multiply(matrix, matrix).block_until_ready()

    return take


def _batch(row: Row) -> dict[str, np.ndarray]:
    if row.network == "bert":
        tokens = row.tokens("inputs")
        return {
            "encoder_input_tokens": tokens,
            "encoder_segment_ids": np.ones_like(tokens),
            "encoder_target_tokens": tokens,
            "encoder_loss_weights": row.masked().astype(np.float32),
        }
    tokens = row.tokens("targets")
    batch = {
        "decoder_input_tokens": tokens[:, :-1],
        "decoder_target_tokens": tokens[:, 1:],
        "decoder_loss_weights": np.ones((row.rows, row.targets), np.float32),
    }
    if row.inputs:
        batch["encoder_input_tokens"] = row.tokens("inputs")
    return batch
