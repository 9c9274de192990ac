"""Trains a tiny language model with checkpoints, for tests that kill, signal and restart it.

Every example has an id. Each step appends its number and its ids to a file, so that a test can
check which examples the steps that count have seen, over however many processes and restarts.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from t5x_like import partitioning, stop_signal
from t5x_like.checkpoints import Checkpoints
from t5x_like.training import step as state_lib
from t5x_like.training.loop import Log, Outcome, StepCost, fit
from t5x_like.training.several_tasks import TaskBatches
from t5x_like.training.step import make_train_step

VOCABULARY, WIDTH, LENGTH, BATCH, SHARDS = 32, 16, 8, 8, 4


class Examples(Iterator[dict[str, np.ndarray]]):
    """Examples 0, 1, 2, ... dealt to virtual shards, whose positions can be saved and restored."""

    def __init__(self, *, shards: range, delay: float = 0.0):
        self._next = {shard: shard for shard in shards}
        self._delay = delay

    def __next__(self) -> dict[str, np.ndarray]:
        time.sleep(self._delay)
        ids = []
        for shard in self._next:
            for _ in range(BATCH // SHARDS):
                ids.append(self._next[shard])
                self._next[shard] += SHARDS
        tokens = np.stack(
            [
                np.random.default_rng(i).integers(VOCABULARY, size=LENGTH, dtype=np.int32)
                for i in ids
            ]
        )
        return {"ids": np.array(ids, np.int32), "tokens": tokens}

    def state(self) -> dict[int, bytes]:
        return {shard: json.dumps(position).encode() for shard, position in self._next.items()}

    def restore(self, state: Mapping[int, bytes]) -> None:
        self._next = {shard: json.loads(state[shard]) for shard in self._next}


class Silent:
    """A writer that keeps nothing."""

    def write_scalars(self, step: int, scalars: Mapping[str, Any]) -> None:
        pass

    def flush(self) -> None:
        pass


def loss(params: Any, batch: Any, rng: jax.Array | None) -> tuple:
    """Next-token cross-entropy of an embedding, with dropout, and a projection."""
    hidden = params["embedding"][batch["tokens"][:, :-1]]
    if rng is not None:
        hidden = hidden * jax.random.bernoulli(rng, 0.8, hidden.shape)
    logits = hidden @ params["kernel"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"][:, 1:])
    weight = jnp.float32(losses.size)
    return losses.sum(), weight, {"cross_entropy": (losses.sum(), weight)}


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))


def initial_state(optimizer: optax.GradientTransformation) -> state_lib.TrainState:
    params = {
        "embedding": jax.random.normal(jax.random.key(0), (VOCABULARY, WIDTH)),
        "kernel": jax.random.normal(jax.random.key(1), (WIDTH, VOCABULARY)),
    }
    return state_lib.create_state(params, optimizer=optimizer, seed=2)


def abstract_state(optimizer: optax.GradientTransformation) -> state_lib.TrainState:
    """Shapes and shardings: matrices cut by row over all devices, the rest whole on each."""
    rows, whole = NamedSharding(mesh(), P("data")), NamedSharding(mesh(), P())
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows if x.ndim == 2 else whole),
        jax.eval_shape(lambda: initial_state(optimizer)),
    )


def recorded(
    step: Callable[..., Any], path: pathlib.Path, *, start: int, kill_at: int | None
) -> Callable[..., Any]:
    """Records which examples each step gets, and dies in the middle of step `kill_at`."""
    shardings = NamedSharding(mesh(), P("data"))
    count = start

    def wrapped(state: Any, batch: Any) -> Any:
        nonlocal count
        count += 1
        with path.open("a") as file:
            file.write(json.dumps([count, batch.pop("ids").tolist()]) + "\n")
        batch = {
            name: jax.make_array_from_process_local_data(shardings, x) for name, x in batch.items()
        }
        result = step(state, batch)
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return wrapped


def evaluation(batches: int) -> Callable[[Any], dict[str, float]]:
    """An evaluation of so many batches, each a collective that takes a tenth of a second."""
    norm = jax.jit(lambda params: optax.tree.norm(params))

    def evaluate(state: Any) -> dict[str, float]:
        for number in range(batches):
            norm(state.params).block_until_ready()
            time.sleep(0.1)
            if number == 3:
                report("evaluating")
            stop_signal.between_batches()
        return {}

    return evaluate


def report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(
    folder: pathlib.Path,
    *,
    steps: int,
    every: int = 5,
    kill_at: int | None = None,
    delay: float = 0.0,
    evaluated: int = 0,
) -> Outcome:
    """Trains up to `steps`, going on from the newest checkpoint in the folder if there is one."""
    optimizer = optax.adamw(1e-2)
    per_process = SHARDS // jax.process_count()
    first = jax.process_index() * per_process
    examples = Examples(shards=range(first, first + per_process), delay=delay)
    abstract = abstract_state(optimizer)
    with (
        jax.set_mesh(mesh()),
        Checkpoints(folder / "checkpoints", every=every) as checkpoints,
    ):
        restored = checkpoints.restore_latest(abstract)
        if restored is None:
            shardings = jax.tree.map(lambda x: x.sharding, abstract)
            state = jax.jit(lambda: initial_state(optimizer), out_shardings=shardings)()
        else:
            state, position = restored
            examples.restore(position)
        step = make_train_step(loss, optimizer, schedule=optax.constant_schedule(1e-2))
        return fit(
            state,
            train_steps={
                "": recorded(
                    jax.jit(step, donate_argnums=0),
                    folder / f"examples-{jax.process_index()}.jsonl",
                    start=int(state.step),
                    kill_at=kill_at,
                )
            },
            batches=TaskBatches({"": examples}, choose=lambda _: "", step=int(state.step)),
            put=lambda batch: batch,
            steps=steps,
            log=Log(
                Silent(),
                every=3,
                cost={"": StepCost(tokens=BATCH * LENGTH, examples=BATCH)},
                hooks=[lambda step, _: report(f"step {step}")],
            ),
            checkpoints=checkpoints,
            evaluate=evaluation(evaluated) if evaluated else None,
            evaluate_every=3,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--evaluated", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--port", type=int)
    args = parser.parse_args()
    if args.processes > 1:
        jax.distributed.initialize(f"localhost:{args.port}", args.processes, args.process)
    partitioning.connect_processes()  # where the environment asks for it
    outcome = run(
        args.folder,
        steps=args.steps,
        every=args.every,
        kill_at=args.kill_at,
        delay=args.delay,
        evaluated=args.evaluated,
    )
    report(f"done {int(outcome.state.step)} {outcome.interrupted}")


if __name__ == "__main__":
    sys.exit(main())
