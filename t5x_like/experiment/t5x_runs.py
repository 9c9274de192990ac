"""Convert the gin files of a T5X run to settings: network, loss, optimizer, data and steps.

Names and defaults come from T5X's classes and its published files (examples/t5,
examples/scalable_t5, configs/runs).
"""

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import systems
from t5x_like.config.run_settings import (
    CheckpointSettings,
    DataSettings,
    EvaluateSettings,
    MeshSettings,
    RunSettings,
    TrainSettings,
)
from t5x_like.experiment.gin_files import Bindings, Reference
from t5x_like.names import choose

_TRAIN = "t5x.train.train"
_DATASET = "t5x.utils.DatasetConfig"
_MODEL = "t5x.models.EncoderDecoderModel"
_ADAFACTOR = "t5x.adafactor.Adafactor"
_RATE = "t5x.utils.create_learning_rate_scheduler"
_SAVE, _RESTORE = "t5x.utils.SaveCheckpointConfig", "t5x.utils.RestoreCheckpointConfig"
_SENTENCE_PIECE, _BYTES = "seqio.SentencePieceVocabulary", "seqio.ByteVocabulary"

# {config class: system}. The scalable T5 stacks its layers, each with its own position bias.
_NETWORKS = {
    "t5x.examples.t5.network.T5Config": "t5",
    "t5x.examples.scalable_t5.network.T5Config": "umt5",
}
# {our setting of the model: (T5X's name, T5X's default)}
_SIZES = {
    "vocab_size": ("vocab_size", None),
    "d_model": ("emb_dim", 512),
    "heads": ("num_heads", 8),
    "encoder_layers": ("num_encoder_layers", 6),
    "decoder_layers": ("num_decoder_layers", 6),
    "d_kv": ("head_dim", 64),
    "d_ff": ("mlp_dim", 2048),
    "dropout": ("dropout_rate", 0.1),
    "tied_head": ("logits_via_embedding", False),
    "dtype": ("dtype", "float32"),
}
_ACTIVATIONS = {"relu": "relu", "gelu * linear": "gated_gelu"}
_OPTIMIZER = {
    "decay_exponent": ("decay_rate", 0.8),
    "clipping_threshold": ("clipping_threshold", 1.0),
    "multiply_by_parameter_scale": ("multiply_by_parameter_scale", True),
    "min_dim_size_to_factor": ("min_dim_size_to_factor", 128),
    "epsilon_gradient": ("epsilon1", 1e-30),
    "epsilon_parameter": ("epsilon2", 1e-3),
}
# {argument of T5X's Adafactor that is not supported here: values with which it has no effect}
_WITHOUT_EQUAL: dict[str, tuple[Any, ...]] = {
    "beta1": (None, 0.0),  # T5X's momentum comes after the learning rate, ours before
    "factored": (True,),
    "max_parameter_scale": (None,),
    "skip_nan_updates": (None, False),
    "step_offset": (0,),
    "weight_decay_rate": (None, 0.0),  # T5X's is not multiplied by the learning rate
    "weight_decay_rate_lr_exponent": (None,),
}
# {task name in the package t5: data settings}, for the tasks that T5X's files train on.
_TASKS: dict[str, dict[str, str]] = {
    "c4_v220_span_corruption": {
        "module": "data/c4.py",
        "task": "c4_en",
        "objective": "span_corruption",
    },
    "glue_v002_proportional": {
        "module": "data/glue.py",
        "task": "glue",
        "objective": "text_to_text",
    },
    "super_glue_v102_proportional": {
        "module": "data/super_glue.py",
        "task": "super_glue",
        "objective": "text_to_text",
    },
}


def network(bindings: Bindings) -> tuple[str, dict[str, Any]]:
    """Return the system and the model settings of the network that the files describe.

    Raises:
        ValueError: they describe no network or an unsupported one, or leave a setting open.
    """
    _check_model(bindings)
    module = _reference(bindings, _MODEL, "module")
    config = _reference(bindings, module.name, "config")
    system = choose(f"{module.name}.config", config.name, _NETWORKS)
    settings = {}
    for ours, (theirs, default) in _SIZES.items():
        value = bindings.get(config.name, theirs, default, scope=config.scope)
        kind = type(default) if default is not None else int
        if type(value) is not kind and (kind, type(value)) != (float, int):
            raise ValueError(f"{config.name}.{theirs}={value!r} must be a {kind.__name__}")
        settings[ours] = kind(value)
    settings["feed_forward"] = _feed_forward(bindings, config.name)
    return system, settings


def run(bindings: Bindings) -> RunSettings:
    """Return the settings of the training run that the files describe.

    Raises:
        ValueError: the optimizer, the schedule or the data is not supported; see also `network`.
    """
    system, model = network(bindings)
    loss = {
        "z_loss": float(bindings.get(_MODEL, "z_loss", 0.0)),
        "label_smoothing": float(bindings.get(_MODEL, "label_smoothing", 0.0)),
    }
    optimizer = {"name": "adafactor", **_optimizer(bindings), **_schedule(bindings)}
    settings = RunSettings(
        system=system,
        model={**systems.find(system).sizes["small"], **model},
        loss=loss,
        data=_data(bindings),
        train=_train(bindings),
        optimizer=optimizer,
        mesh=_mesh(bindings),
        checkpoint=_checkpoint(bindings),
        evaluate=EvaluateSettings(
            every=bindings.get(_TRAIN, "eval_period", 1000),
            batches=bindings.get(_TRAIN, "eval_steps", 20),
        ),
        **_start(bindings),
        # T5X requires it to be set; here it may stay open, since --config.workdir can set it.
        workdir=""
        if bindings.is_required(_TRAIN, "model_dir")
        else bindings.get(_TRAIN, "model_dir", ""),
    )
    beams = bindings.get(f"{_MODEL}.predict_batch_with_aux", "num_decodes")
    decode = {**settings.decode, "num_beams": beams} if beams else settings.decode
    return dataclasses.replace(settings, decode=decode)


def load(files: Sequence[str], changes: Sequence[tuple[str, str]]) -> RunSettings:
    """Return the settings of the run in gin files, and print each binding that was not used.

    Raises:
        ValueError: see `Bindings` and `run`.
    """
    bindings = Bindings(files, changes)
    settings = run(bindings)
    sys.stdout.writelines(f"not used: {one.written} ({one.place})\n" for one in bindings.unused())
    return settings


def _check_model(bindings: Bindings) -> None:
    found = bindings.get(_TRAIN, "model") or bindings.macro("MODEL")
    if not isinstance(found, Reference):
        raise ValueError(
            "the gin files have no MODEL: include one of T5X's networks, such as "
            "t5x/examples/t5/t5_1_1/base.gin"
        )
    choose("MODEL", found.name, {_MODEL: None})


def _reference(bindings: Bindings, name: str, argument: str) -> Reference:
    found = bindings.get(name, argument)
    if not isinstance(found, Reference):
        raise ValueError(f"{name}.{argument}={found!r} must name a class, as @network.T5Config()")
    return found


def _feed_forward(bindings: Bindings, config: str) -> str:
    found = bindings.get(config, "mlp_activations", ("relu",))
    activations = [str(one) for one in found] if isinstance(found, list | tuple) else [str(found)]
    return choose(f"{config}.mlp_activations", " * ".join(activations), _ACTIVATIONS)


def _data(bindings: Bindings) -> DataSettings:
    """The task, the lengths, the batch size and the vocabulary."""
    found = bindings.get(_TRAIN, "train_dataset_cfg")
    if not isinstance(found, Reference):
        raise ValueError(
            f"the gin files have no {_TRAIN}.train_dataset_cfg: include a run of T5X's, such as "
            "t5x/configs/runs/pretrain.gin"
        )

    def setting(name: str, default: Any) -> Any:
        return bindings.get(found.name, name, default, scope=found.scope)

    name, lengths = setting("mixture_or_task_name", ""), setting("task_feature_lengths", None)
    if not (isinstance(lengths, Mapping) and sorted(lengths) == ["inputs", "targets"]):
        raise ValueError(
            f"TASK_FEATURE_LENGTHS={lengths!r} must have the lengths of 'inputs' and 'targets'"
        )
    # For other tasks the user sets --config.data.module=... --config.data.task=...
    task: dict[str, Any] = _TASKS.get(name, {"module": "", "task": str(name)})
    return DataSettings(
        **task,
        lengths=dict(lengths),
        batch_size=setting("batch_size", 128),
        pack=setting("pack", False),
        seed=setting("seed", None) or 0,
        vocabulary=_vocabulary(bindings),
    )


def _vocabulary(bindings: Bindings) -> str:
    found = bindings.get(_MODEL, "input_vocabulary")
    if not isinstance(found, Reference):
        return ""
    if found != bindings.get(_MODEL, "output_vocabulary", found):
        raise ValueError(f"{_MODEL}: input_vocabulary and output_vocabulary must be the same")
    choose(f"{_MODEL}.input_vocabulary", found.name, dict.fromkeys((_SENTENCE_PIECE, _BYTES)))
    if found.name == _BYTES:
        return f"bytes:{bindings.get(_BYTES, 'extra_ids', 0)}"
    return bindings.get(_SENTENCE_PIECE, "sentencepiece_model_file", "", scope=found.scope)


def _train(bindings: Bindings) -> TrainSettings:
    """Return the number of steps, and how each is computed."""
    steps = bindings.get(_TRAIN, "total_steps")
    if type(steps) is not int:
        raise ValueError(f"TRAIN_STEPS={steps!r} must be a whole number")
    hardware = bindings.get(_TRAIN, "use_hardware_rng", False)
    return TrainSettings(
        steps=steps,
        seed=bindings.get(_TRAIN, "random_seed") or 0,
        random_bits="unsafe_rbg" if hardware else "threefry",
        microbatches=bindings.get("t5x.trainer.Trainer", "num_microbatches") or 1,
    )


def _checkpoint(bindings: Bindings) -> CheckpointSettings:
    every, keep = bindings.get(_SAVE, "period", 1000), bindings.get(_SAVE, "keep")
    if keep is None:  # keep all
        return CheckpointSettings(every=every, keep_every=every)
    return CheckpointSettings(every=every, keep=keep)


def _mesh(bindings: Bindings) -> MeshSettings:
    partitioner = bindings.get(_TRAIN, "partitioner")
    if not isinstance(partitioner, Reference):
        return MeshSettings()
    return MeshSettings(model=bindings.get(partitioner.name, "num_partitions") or 1)


def _optimizer(bindings: Bindings) -> dict[str, Any]:
    """Return the settings of Adafactor."""
    found = bindings.get(_MODEL, "optimizer_def")
    if isinstance(found, Reference) and found.name != _ADAFACTOR:
        choose(f"{_MODEL}.optimizer_def", found.name, {_ADAFACTOR: None})
    for name, harmless in _WITHOUT_EQUAL.items():
        value = bindings.get(_ADAFACTOR, name, harmless[0])
        if value not in harmless:
            raise ValueError(f"{_ADAFACTOR}.{name}={value!r} has no equal here: {harmless} has")
    # T5X's standard rules factor the matrix of each layer, as here.
    rules = bindings.get(_ADAFACTOR, "logical_factor_rules")
    standard = "t5x.adafactor.standard_logical_factor_rules"
    if rules is not None and rules != Reference(standard):
        raise ValueError(f"{_ADAFACTOR}.logical_factor_rules has no equal here but @{standard}()")
    settings = {
        ours: bindings.get(_ADAFACTOR, theirs, default)
        for ours, (theirs, default) in _OPTIMIZER.items()
    }
    if settings["clipping_threshold"] is None:
        raise ValueError(f"{_ADAFACTOR}.clipping_threshold=None has no equal here: a number has")
    return settings | _clipping(bindings)


def _clipping(bindings: Bindings) -> dict[str, float]:
    """Return the clipping setting, which depends on how T5X normalizes the sum of the losses.

    T5X's gradient is the sum of the microbatches' gradients, each normalized separately.

    Raises:
        ValueError: each sequence has the same weight, which changes the loss.
    """
    limit = float(bindings.get(_ADAFACTOR, "global_norm_clip_threshold") or 0)
    factor = bindings.get(_MODEL, "loss_normalizing_factor")
    kind = factor.upper() if isinstance(factor, str) else factor
    if isinstance(kind, str):
        allowed = {"NUM_REAL_TARGET_TOKENS": None, "NUM_TOTAL_TARGET_TOKENS": None}
        choose(f"{_MODEL}.loss_normalizing_factor", kind, allowed)
    if not limit:
        return {}  # without clipping, Adafactor's steps do not depend on the gradient's scale
    microbatches = bindings.get("t5x.trainer.Trainer", "num_microbatches") or 1
    if kind == "NUM_REAL_TARGET_TOKENS":
        return {"clip_norm": limit / microbatches}
    if kind == "NUM_TOTAL_TARGET_TOKENS":
        found = bindings.get(_TRAIN, "train_dataset_cfg")
        rows = bindings.get(found.name, "batch_size", 128, scope=found.scope)
        lengths = bindings.get(found.name, "task_feature_lengths", None, scope=found.scope)
        return {"clip_sum": limit * rows * lengths["targets"] / microbatches}
    return {"clip_sum": limit * (1.0 if kind is None else float(kind))}


def _schedule(bindings: Bindings) -> dict[str, Any]:
    """Return the learning rate schedule for the factors of T5X's schedule."""
    found = bindings.get("t5x.trainer.Trainer", "learning_rate_fn")
    if isinstance(found, Reference):
        choose("t5x.trainer.Trainer.learning_rate_fn", found.name, {_RATE: None})
    factors = bindings.get(_RATE, "factors", "constant * linear_warmup * rsqrt_decay")
    rate = float(bindings.get(_RATE, "base_learning_rate", 0.5))
    warmup = bindings.get(_RATE, "warmup_steps", 1000)
    if offset := bindings.get(_RATE, "step_offset", 0):
        raise ValueError(f"{_RATE}.step_offset={offset} has no equal here: 0 has")
    schedules = {
        "constant": {"schedule": "constant", "learning_rate": rate},
        "constant * linear_warmup": {
            "schedule": "constant",
            "learning_rate": rate,
            "warmup_steps": warmup,
        },
        "constant * rsqrt_decay": {
            "schedule": "rsqrt",
            "learning_rate": rate,
            "warmup_steps": warmup,
        },
        "constant * rsqrt_normalized_decay": {
            "schedule": "rsqrt",
            "learning_rate": rate * warmup**0.5,
            "warmup_steps": warmup,
        },
    }
    return choose(f"{_RATE}.factors", " * ".join(re.split(r"\s*\*\s*", factors)), schedules)


def _start(bindings: Bindings) -> dict[str, Any]:
    """Return the checkpoint whose parameters, step and optimizer state the run continues from."""
    path = bindings.get(_RESTORE, "path") or ""
    if not isinstance(path, str):
        raise ValueError(f"INITIAL_CHECKPOINT_PATH={path!r} must be one folder, as a text")
    return {"initialize": f"t5x:{path}", "initialize_optimizer": True} if path else {}
