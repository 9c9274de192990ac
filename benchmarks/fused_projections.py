"""Compare separate products for projections of one input with one product of joined kernels.

    python -m benchmarks.fused_projections [--topology v5e:2x2]

Queries, keys and values, and the two input projections of a gated feed-forward, of T5 1.1 large
and LLaMA 3 8B in bfloat16 with float32 parameters, forward and backward, are compiled for one chip
of the topology and for the CPU. The kernels are joined at use, so that the parameters stay the
same. The rest of the network is left out: elementwise functions come before and after.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array

from t5x_like.experiment.command_line import ArgumentParser
from t5x_like.research.planning import chips, products
from t5x_like.research.planning.compiling import temporaries
from t5x_like.research.planning.hlo import parse

# Tokens per chip, width, outputs of each projection.
SHAPES = {
    "T5 1.1 large, query key value": (32_768, 1024, (1024, 1024, 1024)),
    "T5 1.1 large, wi_0 wi_1": (32_768, 1024, (2816, 2816)),
    "LLaMA 3 8B, query key value": (8192, 4096, (4096, 1024, 1024)),
    "LLaMA 3 8B, wi_0 wi_1": (8192, 4096, (14_336, 14_336)),
}
CPU_TOKENS = 512


def main() -> None:
    """Print FLOPs, bytes and temporaries of each variant."""
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.fused_projections")
    parser.add_argument("--topology", default="v5e:2x2")
    given = parser.parse_args()
    places = {
        given.topology.partition(":")[0]: (chips.topology(given.topology).devices()[0], None),
        "cpu": (jax.devices("cpu")[0], CPU_TOKENS),
    }
    for name, (tokens, width, outputs) in SHAPES.items():
        for place, (device, fewer) in places.items():
            for project in (apart, joined):
                shapes = _shapes(device, fewer or tokens, width, outputs)
                compiled = jax.jit(_step(project)).lower(*shapes).compile()
                program = parse(compiled.as_text())
                size = temporaries(compiled.memory_analysis(), device.platform)
                print(
                    f"{name}, {place}, {project.__name__}: {products.flops(program):.4g} FLOPs, "
                    f"{products.memory_bytes(program) / 1e6:,.0f} MB moved, "
                    f"{size / 1e6:,.0f} MB of temporaries",
                    flush=True,
                )


def apart(x: Array, kernels: list[Array]) -> list[Array]:
    """Compute a product for each projection."""
    return [x @ kernel.astype(x.dtype) for kernel in kernels]


def joined(x: Array, kernels: list[Array]) -> list[Array]:
    """Compute one product for all projections."""
    y = x @ jnp.concatenate([kernel.astype(x.dtype) for kernel in kernels], axis=1)
    return jnp.split(y, np.cumsum([kernel.shape[1] for kernel in kernels])[:-1], axis=1)


def _step(project: Callable[..., Any]) -> Callable[..., Any]:
    def step(x: Array, kernels: list[Array], gradients: list[Array]) -> Any:
        outputs, back = jax.vjp(project, jnp.tanh(x), kernels)
        return [jnp.tanh(y) for y in outputs], back([jnp.sin(g) for g in gradients])

    return step


def _shapes(device: jax.Device, tokens: int, width: int, outputs: tuple[int, ...]) -> Any:
    def shape(rows: int, columns: int, dtype: Any) -> jax.ShapeDtypeStruct:
        sharding = SingleDeviceSharding(device)
        return jax.ShapeDtypeStruct((rows, columns), dtype, sharding=sharding)

    return (
        shape(tokens, width, jnp.bfloat16),
        [shape(width, size, jnp.float32) for size in outputs],
        [shape(tokens, size, jnp.bfloat16) for size in outputs],
    )


if __name__ == "__main__":
    main()
