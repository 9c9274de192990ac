"""Compare memory of output layer and loss, with gradients: whole logits and tiles.

    python -m benchmarks.vocabulary_loss [--topology v5p:2x2x2] [--steps]

The output layer and the cross-entropy of T5 1.1 large (128 rows of 114 targets per device) and of
LLaMA 3 8B (a row of 8,192 tokens per device) in bfloat16, with parameters sharded over all devices,
are compiled for TPUs that need not exist; the rest of the network is left out. --steps compiles
whole training steps instead, with splash attention in LLaMA.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from configs import llama, t5
from t5x_like import losses, partitioning
from t5x_like.experiment.command_line import ArgumentParser
from t5x_like.experiment.run import of_config
from t5x_like.losses import token_cross_entropy
from t5x_like.nn.embeddings import VocabularyProduct
from t5x_like.research.planning import chips, report
from t5x_like.research.planning.compiling import temporaries
from t5x_like.systems import llama as llama_system

# Rows per device, tokens per row, width, vocabulary.
SHAPES = {"T5 1.1 large": (128, 114, 1024, 32_128), "LLaMA 3 8B": (1, 8192, 4096, 128_256)}
STEPS = {
    "T5 1.1 large": (
        lambda: t5.get_config("large"),
        {"data.batch_size": 1024, "model.remat": "attention"},
    ),
    "LLaMA 3 8B": (
        lambda: llama.get_config("7b"),
        {f"model.{name}": value for name, value in llama_system.SIZES["3_8b"].items()}
        | {
            "model.attention": "splash",
            "model.remat": "dots_with_no_batch_dims",
            "data.lengths.targets": 8192,
            "data.batch_size": 8,
        },
    ),
}


def main() -> None:
    """Print the bytes of temporaries of each variant, or the plans of whole steps."""
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.vocabulary_loss")
    parser.add_argument("--topology", default="v5p:2x2x2")
    parser.add_argument("--steps", action="store_true", help="whole training steps")
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # devices are described, not used
    topology = chips.topology(given.topology)
    for name, shape in SHAPES.items():
        for large, kind in ((float("inf"), "whole"), (0, "tiles")):
            token_cross_entropy.LARGE = large
            if given.steps:
                found = plan_step(*STEPS[name], topology=topology)
            else:
                compiled = compile_gradient(*shape, devices=topology.devices())
                found = f"{temporaries(compiled.memory_analysis(), 'tpu') / 1e9:.2f} GB"
            print(f"{name}, {kind}: {found}", flush=True)


def plan_step(
    make: Callable[[], ml_collections.ConfigDict],
    changes: Mapping[str, Any],
    *,
    topology: chips.Topology,
) -> str:
    """Describe the memory of a training step, and the lower bound on its time."""
    config = make()
    config.mesh = {"fsdp": topology.number}
    config.update_from_flattened_dict({**changes, "model.dtype": "bfloat16"})
    run = of_config(config)
    plan = report.with_compiler(report.arithmetic(run), run, topology)
    if "why" in plan:  # it does not fit
        return plan["why"]
    found = {name: f"{size / 1e9:.2f} GB" for name, size in plan["bytes_per_device"].items()}
    bounds = {name: f"{value:.3f} s" for name, value in plan["step_seconds"].items()}
    return f"{found}; at least {bounds}"


def compile_gradient(
    rows: int, tokens: int, width: int, vocabulary: int, *, devices: list[jax.Device]
) -> Any:
    """Compile the gradient with respect to the hidden states and the kernel."""
    mesh = partitioning.make_mesh({"fsdp": len(devices)}, devices=devices)
    batch = partitioning.batch_sharding(mesh)
    rows *= len(devices)

    def array(shape: tuple[int, ...], dtype: Any, sharding: Any = batch) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    kernel_sharding = partitioning.shardings(mesh, jax.sharding.PartitionSpec("embed", "vocab"))

    def loss(hidden: Any, kernel: Any, targets: Any) -> Any:
        logits = VocabularyProduct(hidden, kernel, vocabulary_axis=1)
        return losses.cross_entropy(logits, targets, jnp.ones(targets.shape), z_loss=1e-4)[0]

    run = functools.partial(jax.jit, out_shardings=(batch, kernel_sharding))
    with partitioning.layout(mesh):
        return (
            run(jax.grad(loss, argnums=(0, 1)))
            .lower(
                array((rows, tokens, width), jnp.bfloat16),
                array((width, vocabulary), jnp.float32, kernel_sharding),
                array((rows, tokens), jnp.int32),
            )
            .compile()
        )


if __name__ == "__main__":
    main()
