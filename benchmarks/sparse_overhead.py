"""Measure the cost of sparsity: steps of Switch and of T5 at equal FLOPs, and parts of a layer.

    python -m benchmarks.sparse_overhead                 6 + 6 layers of 512 wide, 8 experts
    python -m benchmarks.sparse_overhead --parts         one layer, part by part

The measured functions take turns in one process; results are medians, and ratios of medians.
"""

import functools
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections

from benchmarks.train_step import load_config, random_batch
from t5x_like.experiment import model_side
from t5x_like.experiment.command_line import ArgumentParser, count
from t5x_like.experiment.run import of_config
from t5x_like.nn import moe
from t5x_like.nn.linear import MLP
from t5x_like.systems import switch
from t5x_like.training import flops


def main(arguments: Sequence[str]) -> None:
    """Print the figures."""
    parser = ArgumentParser(__doc__, prog="python -m benchmarks.sparse_overhead")
    parser.add_argument("--experts", type=count, default=8)
    parser.add_argument("--batch", type=count, default=4)
    parser.add_argument("--loop", choices=("scan", "unroll"), default="scan")
    parser.add_argument("--repeats", type=count, default=7)
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args(arguments)
    if options.parts:
        measure_parts(options.experts, batch=options.batch, repeats=options.repeats)
    else:
        measure_steps(
            options.experts,
            batch=options.batch,
            repeats=options.repeats,
            loop=options.loop,
        )


def measure_steps(experts: int, *, batch: int, repeats: int, loop: str) -> None:
    """Time training steps with and without the optimizer, whose share grows with the experts."""
    configs = {"T5": load_config("configs/t5.py", "v1_0_small")}
    for factor in (1.0, 1.25):
        config = load_config("configs/t5.py", "v1_0_small")
        config.system = "switch"
        config.model = {**switch.SIZES["base_8"], **config.model.to_dict()}
        config.model.update({"experts": experts, "capacity_factor": factor})
        configs[f"Switch, capacity {factor}"] = config
    steps: dict[str, Callable[[], Any]] = {}
    for name, config in configs.items():
        config.data.batch_size = batch
        config.model.update({"dropout": 0.0, "loop": loop})
        steps |= _steps(name, config)
    seconds = take_turns(steps, repeats=repeats)
    for name, median in seconds.items():
        dense = seconds["T5" + ", gradient alone" * name.endswith("gradient alone")]
        print(f"{name}: {median:.3f} s, {median / dense:.2f} of T5's")


def _steps(name: str, config: ml_collections.ConfigDict) -> dict[str, Callable[[], Any]]:
    model = model_side.build(of_config(config))
    batch = random_batch(config)
    key = jax.random.key(0)  # as in training, since experts have more slots in evaluation
    work = flops.training(lambda params: model.loss(params, batch, key), model.shapes.params)
    size = sum(x.size for x in jax.tree.leaves(model.shapes.params))
    print(f"{name}: {size:,} parameters, {work / 1e9:.0f} GFLOP a step")
    state = model.initial_state()
    holder = {"state": state}

    def step() -> Any:
        holder["state"], metrics = model.train_step(holder["state"], model.put(batch))
        return metrics

    def loss(params: Any, key: jax.Array) -> jax.Array:
        return model.loss(params, batch, key)[0]

    gradient = jax.jit(jax.grad(loss))
    with model.layout():
        return {
            name: step,
            f"{name}, gradient alone": lambda: gradient(holder["state"].params, key),
        }


def measure_parts(experts: int, *, batch: int, repeats: int) -> None:
    """Time a dense layer and parts of a sparse layer, with gradients, and print their memory."""
    length, width, hidden = 512, 512, 2048
    x = jax.random.normal(jax.random.key(0), (batch, length, width))
    inits: Mapping[str, Any] = {
        "wi_init": nn.initializers.normal(width**-0.5),
        "wo_init": nn.initializers.normal(hidden**-0.5),
    }
    sparse = functools.partial(
        moe.SparseFeedForward,
        make_router=functools.partial(moe.SwitchRouter, experts=experts),
        eval_capacity_factor=1.0,
    )
    make = functools.partial(moe.Experts, experts=experts, hidden=hidden, **inits)
    layers: dict[str, nn.Module] = {
        "dense": MLP(hidden=hidden, **inits),
        "sparse": sparse(make_experts=make),
        "sparse, but for the experts": sparse(make_experts=Nothing),
        "router alone": RouterAlone(functools.partial(moe.SwitchRouter, experts=experts)),
        "dropless": sparse(make_experts=make, dispatch="dropless"),
    }
    calls = {}
    for name, layer in layers.items():
        params = nn.unbox(layer.init(jax.random.key(0), x)).get("params", {})

        def loss(params: Any, x: jax.Array, layer: nn.Module = layer) -> jax.Array:
            return jnp.sum(jnp.square(layer.apply({"params": params}, x)))

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(params, x).compile()
        calls[name] = functools.partial(compiled, params, x)
        memory = compiled.memory_analysis().temp_size_in_bytes
        print(f"{name}: {memory / 2**20:.1f} MiB of temporaries")
    seconds = take_turns(calls, repeats=repeats)
    for name, median in seconds.items():
        print(
            f"{name}: {1e3 * median:.1f} ms, {median / seconds['dense']:.3f} of the dense layer's"
        )


class Nothing(nn.Module):
    """Experts that return their input."""

    dtype: Any = jnp.float32

    def __call__(self, x: jax.Array, *, multiply: Any, deterministic: bool) -> jax.Array:
        """Return the input."""
        return x


class RouterAlone(nn.Module):
    """Dispatch without experts: slots are gathered and combined."""

    make_router: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the gates times the tokens of the slots."""
        router = self.make_router()
        capacity = x.shape[1] // router.experts
        slots = router(x, None, capacity=capacity, deterministic=True)
        return slots.gate * slots.token


def take_turns(calls: Mapping[str, Callable[[], Any]], *, repeats: int) -> dict[str, float]:
    """Return the median seconds of each function, called in turn after an untimed call."""
    for call in calls.values():
        jax.block_until_ready(call())
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


if __name__ == "__main__":
    main(sys.argv[1:])
