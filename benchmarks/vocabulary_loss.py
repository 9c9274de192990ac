"""Memory of the last product and its loss, with gradients: whole logits beside tiles.

    python benchmarks/vocabulary_loss.py [--topology v5p:2x2x2]

The output layer and the cross-entropy of T5 1.1 large (128 rows of 114 targets on a device) and of
LLaMA 3 8B (a row of 8,192 tokens on a device) in bfloat16, parameters sharded over all devices, are
compiled for TPUs that need not be there; the rest of the network is left out.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from t5x_like import losses, partitioning
from t5x_like.experiment.command_line import ArgumentParser
from t5x_like.losses import vocabulary_tiles
from t5x_like.models.vocabulary_product import VocabularyProduct
from t5x_like.planning import chips

# Rows and tokens a row of a device, width, vocabulary.
SHAPES = {"T5 1.1 large": (128, 114, 1024, 32_128), "LLaMA 3 8B": (1, 8192, 4096, 128_256)}


def main() -> None:
    """Print the bytes of the temporaries and the FLOPs of each."""
    parser = ArgumentParser(__doc__, prog="python benchmarks/vocabulary_loss.py")
    parser.add_argument("--topology", default="v5p:2x2x2")
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # devices are described, not used
    devices = chips.topology(given.topology).devices()
    for name, shape in SHAPES.items():
        for large, kind in ((float("inf"), "whole"), (0, "tiles")):
            vocabulary_tiles.LARGE = large
            found = compile_gradient(*shape, devices=devices).memory_analysis()
            print(f"{name}, {kind}: {found.temp_size_in_bytes / 1e9:.2f} GB", flush=True)


def compile_gradient(
    rows: int, tokens: int, width: int, vocabulary: int, *, devices: list[jax.Device]
) -> Any:
    """The compiled gradient by the hidden states and the kernel."""
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
