"""The other side of benchmarks/beside_flax.py: `STEM TOPOLOGY SETTINGS [SOURCES]`.

It runs in the other environment, compiles a training step, and writes the files of
benchmarks/compiled_program.py. T5X's is its own `Trainer`'s, for a model that one of its gin files
describes (benchmarks/t5x_model.py), with its standard axis rules for parameters in two dimensions;
its mesh is of a described slice. A network with experts is Flaxformer's, by the trainer and the
partitioner of t5x/contrib/moe.

transformers has BERT's network in Flax, but no script for its pretraining: the step here has the
loss of examples/flax/language-modeling/run_mlm_flax.py, logits at all positions and their
cross-entropy at the masked ones, beside the next sentence's, and optax's AdamW.
"""

import functools
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import compiled_program  # first: it sets variables that JAX reads

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import t5x_model
from t5x_like.research.planning import chips

_PACKAGES = ("flax", "transformers")


def main(stem: str, topology: str, settings: dict[str, Any], *sources: str) -> None:
    """Compile a training step and write its files."""
    lower = {"t5x": _t5x, "transformers": _transformers}[settings["program"]]
    devices = chips.topology(topology).devices()
    start = time.perf_counter()
    lowered, mesh = lower(devices, settings, *(sources if "sources" in settings else ()))
    with compiled_program.noting_what_does_not_fit(stem, packages=_PACKAGES):
        compiled = lowered.compile()
        seconds = time.perf_counter() - start
        compiled_program.write(stem, compiled, mesh, seconds=seconds, packages=_PACKAGES)


def _t5x(devices: list[Any], settings: dict[str, Any], *sources: str) -> tuple[Any, Mesh]:
    """Trace the step of T5X's trainer."""
    model = t5x_model.build(
        settings["gin"],
        imports=settings["imports"],
        bindings=settings["bindings"],
        sources=sources,
    )
    partitioner, trainer = (_with_experts if "expert" in settings["mesh"] else _dense)(
        devices, settings
    )
    utils = importlib.import_module("t5x.utils")
    inputs, targets = ((settings["rows"], settings["lengths"][n]) for n in ("inputs", "targets"))
    shapes = {"encoder_input_tokens": inputs} | dict.fromkeys(
        ("decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"), targets
    )
    types_of = dict.fromkeys(shapes, jnp.int32)
    state = utils.TrainStateInitializer(
        model.optimizer_def, model.get_initial_variables, shapes, partitioner, types_of
    )
    step = trainer(
        model=model,
        train_state=state.global_train_state_shape,
        partitioner=partitioner,
        eval_names=(),
        summary_dir=None,
        train_state_axes=state.train_state_axes,
        rng=jax.random.PRNGKey(0),
        learning_rate_fn=utils.create_learning_rate_scheduler(),
        num_microbatches=None,
    )._partitioned_train_step
    batch = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in shapes.items()}
    return step.lower(state.global_train_state_shape, batch), partitioner.mesh


def _t5x_mesh(devices: list[Any], settings: dict[str, Any]) -> Mesh:
    """Return T5X's mesh of axes `data` and `model`."""
    local = [device for device in devices if device.process_index == 0]
    get_mesh = importlib.import_module("t5x.partitioning").get_mesh
    return get_mesh(tuple(settings["submesh"]), devices, local)


def _dense(devices: list[Any], settings: dict[str, Any]) -> tuple[Any, Callable[..., Any]]:
    """Return T5X's partitioner, for parameters in two dimensions, and its trainer."""
    partitioning, trainer = (
        importlib.import_module(f"t5x.{name}") for name in ("partitioning", "trainer")
    )
    rules = partitioning.standard_logical_axis_rules(
        activation_partitioning_dims=1, parameter_partitioning_dims=2
    )
    mesh = _t5x_mesh(devices, settings)
    described = type("Partitioner", (partitioning.PjitPartitioner,), {"mesh": mesh})
    submesh = tuple(settings["submesh"])
    return described(model_parallel_submesh=submesh, logical_axis_rules=rules), trainer.Trainer


def _with_experts(devices: list[Any], settings: dict[str, Any]) -> tuple[Any, Callable[..., Any]]:
    """Return the partitioner of T5X's experts, with its own rules, and their trainer."""
    partitioning, trainer = (
        importlib.import_module(f"t5x.contrib.moe.{name}") for name in ("partitioning", "trainer")
    )
    mesh, experts = _t5x_mesh(devices, settings), settings["mesh"]["expert"]
    cut = mesh.devices.reshape(-1, experts, mesh.devices.shape[1])
    mesh = Mesh(cut, ("data", "expert", "model"))
    described = type("Partitioner", (partitioning.MoePjitPartitioner,), {"mesh": mesh})
    submesh = tuple(settings["submesh"])
    partitioner = described(num_expert_partitions=experts, model_parallel_submesh=submesh)
    return partitioner, functools.partial(trainer.MoeTrainer, num_expert_partitions=experts)


def _transformers(devices: list[Any], settings: dict[str, Any]) -> tuple[Any, Mesh]:
    """Trace a step of BERT's pretraining, with parameters on each device and the batch sharded."""
    import optax
    from transformers import BertConfig
    from transformers.models.bert.modeling_flax_bert import FlaxBertForPreTrainingModule

    module = FlaxBertForPreTrainingModule(BertConfig(**settings["model"]), dtype=jnp.bfloat16)
    rows, length = settings["rows"], settings["lengths"]["inputs"]
    names = ("input_ids", "token_type_ids", "attention_mask", "position_ids", "labels")
    batch = {name: jax.ShapeDtypeStruct((rows, length), jnp.int32) for name in names}
    batch["next_sentence"] = jax.ShapeDtypeStruct((rows,), jnp.int32)
    key = jax.random.PRNGKey(0)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(1e-4, eps=1e-6, weight_decay=0.01)
    )
    params = jax.eval_shape(
        lambda ids: module.init(key, ids, ids, ids, ids, None, return_dict=False)["params"],
        batch["input_ids"],
    )
    state = (params, jax.eval_shape(optimizer.init, params), key)
    mesh = Mesh(np.array(devices), tuple(settings["mesh"]))
    on_all, by_rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    step = jax.jit(
        bert_step(module, optimizer),
        in_shardings=(on_all, by_rows),
        out_shardings=(on_all, on_all),
        donate_argnums=0,
    )
    return step.lower(state, batch), mesh


def bert_step(module: Any, optimizer: Any) -> Callable[..., Any]:
    """Return a step of BERT's pretraining: (state, batch) -> (state, loss)."""
    import optax

    def step(state: Any, batch: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        params, moments, key = state
        key, dropout = jax.random.split(key)

        def loss_of(params: Any) -> jax.Array:
            inputs = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
            logits, next_sentence = module.apply(
                {"params": params},
                *(batch[name] for name in inputs),
                None,
                deterministic=False,
                return_dict=False,
                rngs={"dropout": dropout},
            )
            masked = batch["labels"] >= 0
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits, jnp.maximum(batch["labels"], 0)
            )
            of_pairs = optax.softmax_cross_entropy_with_integer_labels(
                next_sentence, batch["next_sentence"]
            )
            return (losses * masked).sum() / masked.sum() + of_pairs.mean()

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments, key), loss

    return step


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), *sys.argv[4:])
