"""Convert the gin files of T5X's scripts to settings: network, loss, optimizer, data and steps.

`train`, `precompile`, `evaluate` and `infer` become the settings of a run, and `export` the
arguments of `convert`. Names and defaults come from T5X's classes and its published files
(examples/, contrib/gpu, configs/runs).
"""

import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from t5x_like import systems
from t5x_like.config.run_settings import (
    CheckpointSettings,
    DataSettings,
    EvaluateSettings,
    MeshSettings,
    RunSettings,
    TrainSettings,
)
from t5x_like.experiment.gin_files import Bindings, GinFlags, Reference
from t5x_like.names import hint

T = TypeVar("T")

_TRAINER, _ADAFACTOR = "t5x.trainer.Trainer", "t5x.adafactor.Adafactor"
_RATE = "t5x.utils.create_learning_rate_scheduler"
_SAVE, _RESTORE = "t5x.utils.SaveCheckpointConfig", "t5x.utils.RestoreCheckpointConfig"
_SENTENCE_PIECE, _BYTES = "seqio.SentencePieceVocabulary", "seqio.ByteVocabulary"
_BEAMS, _SAMPLES = "t5x.decoding.beam_search", "t5x.decoding.temperature_sample"
# The script's function -> its argument with the data. In files that import `__main__` all scripts
# have the name t5x.train.
_SCRIPTS = {
    "t5x.train.train": "train_dataset_cfg",
    "t5x.train.precompile": "train_dataset_cfg",
    "t5x.train.evaluate": "dataset_cfg",
    "t5x.eval.evaluate": "dataset_cfg",
    "t5x.train.infer": "dataset_cfg",
    "t5x.infer.infer": "dataset_cfg",
}
_EXPORT = "t5x.export_lib.save"


class _Model(NamedTuple):
    """A model class of T5X.

    Attributes:
        vocabularies: its arguments with vocabularies.
        decodes_by: its default `decode_fn`.
    """

    vocabularies: tuple[str, ...]
    decodes_by: str


_MODELS = {
    "t5x.models.EncoderDecoderModel": _Model(("input_vocabulary", "output_vocabulary"), _BEAMS),
    "t5x.models.DecoderOnlyModel": _Model(("vocabulary",), _SAMPLES),
}
# {our setting of the model: (T5X's name, T5X's default)}
_SIZES = {
    "vocab_size": ("vocab_size", None),
    "d_model": ("emb_dim", 512),
    "heads": ("num_heads", 8),
    "d_kv": ("head_dim", 64),
    "d_ff": ("mlp_dim", 2048),
    "dropout": ("dropout_rate", 0.1),
    "tied_head": ("logits_via_embedding", False),
    "dtype": ("dtype", "float32"),
}
_TWO_TOWERS = {
    "encoder_layers": ("num_encoder_layers", 6),
    "decoder_layers": ("num_decoder_layers", 6),
}
# The network of a decoder has no encoder; the number of the encoder's layers is not used.
_ONE_TOWER = dict.fromkeys(("encoder_layers", "decoder_layers"), ("num_layers", 6))
# {config class: (system, settings)}. The scalable T5 stacks its layers, each with its own position
# bias.
_NETWORKS: dict[str, tuple[str, dict[str, tuple[str, Any]]]] = {
    "t5x.examples.t5.network.T5Config": ("t5", _SIZES | _TWO_TOWERS),
    "t5x.contrib.gpu.t5.network.T5Config": (
        "t5",
        {**_SIZES, **_TWO_TOWERS, "scaled_scores": ("scale_attn_logits", False)},
    ),
    "t5x.examples.scalable_t5.network.T5Config": ("umt5", _SIZES | _TWO_TOWERS),
    "t5x.examples.decoder_only.network.TransformerConfig": ("t5", _SIZES | _ONE_TOWER),
}
_ACTIVATIONS = {"relu": "relu", "gelu * linear": "gated_gelu"}
# {our setting: (T5X's name, T5X's default)}
_ADAFACTOR_SETTINGS = {
    "decay_exponent": ("decay_rate", 0.8),
    "clipping_threshold": ("clipping_threshold", 1.0),
    "multiply_by_parameter_scale": ("multiply_by_parameter_scale", True),
    "min_dim_size_to_factor": ("min_dim_size_to_factor", 128),
    "epsilon_gradient": ("epsilon1", 1e-30),
    "epsilon_parameter": ("epsilon2", 1e-3),
    "decay_offset": ("step_offset", 0),
}
# {argument of T5X's Adafactor: (values with which it has no effect, why others are refused)}
_ADAFACTOR_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "beta1": ((None, 0.0), "T5X's momentum is taken after the learning rate, here before it"),
    "max_parameter_scale": ((None,), "here the scale of a parameter has no largest value"),
    "skip_nan_updates": ((None, False), "train.on_nonfinite=skip_step skips the whole step"),
    "weight_decay_rate": (
        (None, 0.0),
        "T5X's is not multiplied by the learning rate, here it is (optimizer.weight_decay)",
    ),
    "weight_decay_rate_lr_exponent": (
        (None,),
        "optimizer.weight_decay_power=2 decays by the square of the learning rate",
    ),
}


class _Optax(NamedTuple):
    """An optimizer of optax.

    Attributes:
        name: `optimizer.name` here.
        settings: {our setting: (optax's name, optax's default)}.
        refused: {optax's argument: its value without effect}.
    """

    name: str
    settings: dict[str, tuple[str, Any]]
    refused: dict[str, Any]


_BETAS = {"b1": ("b1", 0.9), "b2": ("b2", 0.999)}
_MOMENT = {"first_moment": ("mu_dtype", None)}
_ADAM = {**_BETAS, "epsilon": ("eps", 1e-8), **_MOMENT}
_NO_ADAM: dict[str, Any] = {"eps_root": 0.0, "nesterov": False}
_OPTAX = {
    "adam": _Optax("adamw", _ADAM, _NO_ADAM),
    "adamw": _Optax(
        "adamw", {**_ADAM, "weight_decay": ("weight_decay", 1e-4)}, {**_NO_ADAM, "mask": None}
    ),
    "lion": _Optax(
        "lion",
        {"b1": ("b1", 0.9), "b2": ("b2", 0.99), **_MOMENT, "weight_decay": ("weight_decay", 1e-3)},
        {"mask": None},
    ),
}
# {clipping of optax: (its limit, our setting)}
_CLIPS = {
    "optax.clip_by_global_norm": ("max_norm", "clip_norm"),
    "optax.clip": ("max_delta", "clip_value"),
}
_REAL, _TOTAL = "NUM_REAL_TARGET_TOKENS", "NUM_TOTAL_TARGET_TOKENS"
_CHAIN = "t5x.optimizers.chain"
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
# Modules that gin files import for other things than their tasks.
_WITHOUT_TASKS = ("__gin__", "__main__", "gin", "jax", "flax", "optax", "seqio", "t5x")


def load(flags: GinFlags) -> RunSettings:
    """Return the settings of the run in gin files, and print each binding that was not used.

    Raises:
        ValueError: see `Bindings` and `run`.
    """
    bindings = Bindings(flags)
    settings = run(bindings)
    for binding in bindings.unused():
        sys.stdout.write(f"not used: {binding.written} ({binding.place})\n")
    if settings.optimizer["name"] != "adafactor" and settings.optimizer.get("weight_decay"):
        sys.stdout.write("weight decay: optax decays all parameters in T5X, here only matrices\n")
    return settings


def network(bindings: Bindings) -> tuple[str, dict[str, Any]]:
    """Return the system and the model settings of the network that the files describe.

    Raises:
        ValueError: they describe no network or an unsupported one, or leave a setting open.
    """
    model = _model(bindings)
    module = _reference(bindings, model, "module")
    config = _reference(bindings, module.name, "config")
    system, sizes = _equal(f"{module.name}.config", config, _NETWORKS)
    settings: dict[str, Any] = {"architecture": "encoder_decoder"}
    if "num_layers" in (theirs for theirs, _ in sizes.values()):
        reads_ahead = bindings.get(model, "inputs_bidirectional_attention", False)
        settings["architecture"] = "prefix_decoder" if reads_ahead else "decoder"
    for ours, (theirs, default) in sizes.items():
        value = bindings.get(config.name, theirs, default, scope=config.scope)
        kind = type(default) if default is not None else int
        if type(value) is not kind and (kind, type(value)) != (float, int):
            raise ValueError(f"{config.name}.{theirs}={value!r} must be a {kind.__name__}")
        settings[ours] = kind(value)
    settings["feed_forward"] = _feed_forward(bindings, config.name)
    return system, settings


def run(bindings: Bindings) -> RunSettings:
    """Return the settings of the run that the files describe.

    A script that evaluates or predicts has no `workdir`, and `initialize` is its checkpoint.

    Raises:
        ValueError: there is no script or an unsupported one; the optimizer, the schedule or the
            data is not supported; see also `network`.
    """
    script = _script(bindings)
    trains = script.endswith(".train")
    system, model = network(bindings)
    data = _data(bindings, script)
    settings = RunSettings(
        system=system,
        model={**systems.find(system).sizes["small"], **model},
        data=data,
        mesh=_mesh(bindings, script),
        decode=_decode(bindings, length=data.lengths["targets"]),
    )
    if not trains:
        return dataclasses.replace(settings, **_without_training(bindings, script, data))
    train = _train(bindings, script)
    return dataclasses.replace(
        settings,
        loss={
            name: float(bindings.get(_model(bindings), name, 0.0))
            for name in ("z_loss", "label_smoothing")
        },
        train=train,
        optimizer=_optimizer(bindings, data, steps=train.steps),
        checkpoint=_checkpoint(bindings),
        evaluate=EvaluateSettings(
            every=bindings.get(script, "eval_period", 1000),
            batches=bindings.get(script, "eval_steps", 20),
        ),
        **_start(bindings),
        # T5X requires it to be set; here it may stay open, since --config.workdir can set it.
        workdir=""
        if bindings.is_required(script, "model_dir")
        else bindings.get(script, "model_dir", ""),
    )


def exports(bindings: Bindings) -> bool:
    """Return whether the files are of T5X's export script."""
    return any(name == _EXPORT for _, name, _ in bindings.arguments)


def export_folder(bindings: Bindings) -> str:
    """Return the folder that T5X's export script writes.

    Raises:
        ValueError: it is not set, or not one folder.
    """
    folder = bindings.get(_EXPORT, "output_dir")
    if not isinstance(folder, str):
        raise ValueError(f"MODEL_OUTPUT_DIR={folder!r} must be one folder, as a text")
    return folder


def _script(bindings: Bindings) -> str:
    names = {name for _, name, _ in bindings.arguments}
    scripts = [name for name in _SCRIPTS if name in names]
    if not scripts and exports(bindings):
        raise ValueError("the gin files export a model: t5x_like.convert --gin=FILE does that here")
    if not scripts:
        raise ValueError(
            "the gin files have no train, precompile, evaluate or infer: include a run of T5X's, "
            "such as t5x/configs/runs/pretrain.gin"
        )
    return scripts[0]


def _model(bindings: Bindings) -> str:
    """Return the name of T5X's model class."""
    names = [name for name in (*_SCRIPTS, _EXPORT) if bindings.get(name, "model")]
    model = bindings.get(names[0], "model") if names else bindings.macro("MODEL")
    if not isinstance(model, Reference):
        raise ValueError(
            "the gin files have no MODEL: include one of T5X's networks, such as "
            "t5x/examples/t5/t5_1_1/base.gin"
        )
    _equal("MODEL", model, _MODELS)
    return model.name


def _reference(bindings: Bindings, name: str, argument: str) -> Reference:
    value = bindings.get(name, argument)
    if not isinstance(value, Reference):
        raise ValueError(f"{name}.{argument}={value!r} must name a class, as @network.T5Config()")
    return value


def _equal(setting: str, value: Any, table: Mapping[str, T]) -> T:
    """Return what T5X's class, function or word is here.

    Raises:
        ValueError: there is no equivalent; the message lists what has one.
    """
    name = value.name if isinstance(value, Reference) else value
    if isinstance(name, str) and name in table:
        return table[name]
    raise ValueError(f"{setting}={name!r} has no equivalent here.{hint(str(name), table)}")


def _feed_forward(bindings: Bindings, config: str) -> str:
    value = bindings.get(config, "mlp_activations", ("relu",))
    activations = value if isinstance(value, list | tuple) else [value]
    names = " * ".join(map(str, activations))
    return _equal(f"{config}.mlp_activations", names, _ACTIVATIONS)


def _dataset(bindings: Bindings, script: str) -> Callable[..., Any]:
    """Return a function that returns an argument of the script's `DatasetConfig`."""
    dataset = bindings.get(script, _SCRIPTS[script])
    if not isinstance(dataset, Reference):
        raise ValueError(
            f"the gin files have no {script}.{_SCRIPTS[script]}: include a run of T5X's, such as "
            "t5x/configs/runs/pretrain.gin"
        )

    def get(argument: str, default: Any) -> Any:
        return bindings.get(dataset.name, argument, default, scope=dataset.scope)

    return get


def _data(bindings: Bindings, script: str) -> DataSettings:
    """Return the task, the lengths, the batch size and the vocabulary."""
    get = _dataset(bindings, script)
    lengths = get("task_feature_lengths", None)
    decodes_only = len(_MODELS[_model(bindings)].vocabularies) == 1
    allowed = [["inputs", "targets"], *([["targets"]] if decodes_only else [])]
    if not (isinstance(lengths, Mapping) and sorted(lengths) in allowed):
        words = " or only ".join(" and ".join(map(repr, features)) for features in allowed)
        raise ValueError(
            f"TASK_FEATURE_LENGTHS={lengths!r} must have the lengths of {words} (--gin."
            "TASK_FEATURE_LENGTHS, or task_feature_lengths of the DatasetConfig)"
        )
    if script.endswith(".evaluate") and (split := get("split", "test")) != "validation":
        raise ValueError(
            f"utils.DatasetConfig.split={split!r}: evaluation here reads the split 'validation' "
            "(--gin.utils.DatasetConfig.split=\"'validation'\")"
        )
    if script.endswith(".infer"):  # which reads texts here, and no task
        task: dict[str, Any] = {"module": "", "objective": "text_to_text"}
    else:
        task = _task(bindings, get, pairs="inputs" in lengths)
    if decodes_only:
        task["converter"] = "prefix_lm" if "inputs" in lengths else "decoder"
    return DataSettings(
        **task,
        lengths=dict(lengths),
        batch_size=get("batch_size", 128),
        pack=get("pack", False),
        seed=get("seed", None) or 0,
        vocabulary=_vocabulary(bindings),
    )


def _task(bindings: Bindings, get: Callable[..., Any], *, pairs: bool) -> dict[str, Any]:
    """Return the settings of a task: of this repository, or of the modules that the files import.

    If they import no module of tasks, the user sets --config.data.module and --config.data.task.
    """
    name = get("mixture_or_task_name", "")
    if not isinstance(name, str):
        raise ValueError(f"MIXTURE_OR_TASK_NAME={name!r} must be the name of a task, as a text")
    if name in _TASKS:
        return dict(_TASKS[name])
    named = [get("module", None)] if get("module", None) else bindings.modules
    modules = [module for module in dict.fromkeys(named) if _has_tasks(module)]
    if not modules:
        return {"module": "", "task": name}
    of_pairs = "span_corruption" if "span_corruption" in name else "text_to_text"
    return {
        "module": "data/seqio_tasks.py",
        "task": name,
        "settings": {"modules": tuple(modules)},
        "objective": of_pairs if pairs else "language_modeling",
    }


def _has_tasks(module: str) -> bool:
    return module.split(".")[0] not in _WITHOUT_TASKS or module.endswith(("tasks", "mixtures"))


def _vocabulary(bindings: Bindings) -> str:
    model = _model(bindings)
    arguments = _MODELS[model].vocabularies
    vocabulary = bindings.get(model, arguments[0])
    if not isinstance(vocabulary, Reference):
        return ""
    if vocabulary != bindings.get(model, arguments[-1], vocabulary):
        raise ValueError(f"{model}: input_vocabulary and output_vocabulary must be the same")
    _equal(f"{model}.{arguments[0]}", vocabulary, dict.fromkeys((_SENTENCE_PIECE, _BYTES)))
    if vocabulary.name == _BYTES:
        return f"bytes:{bindings.get(_BYTES, 'extra_ids', 0)}"
    return bindings.get(_SENTENCE_PIECE, "sentencepiece_model_file", "", scope=vocabulary.scope)


def _train(bindings: Bindings, script: str) -> TrainSettings:
    """Return the number of steps, and how each is computed."""
    if relative := bindings.get(script, "relative_steps"):
        # Added to the step of the initial checkpoint, which is in its name.
        path = _initial_checkpoint(bindings)
        named = re.search(r"checkpoint_(\d+)/*$", path)
        if path and not named:
            raise ValueError(
                f"TRAIN_STEPS_RELATIVE={relative}: {path!r} does not end in checkpoint_STEP: set "
                "TRAIN_STEPS, which includes the checkpoint's steps"
            )
        steps = relative + (int(named[1]) if named else 0)
    else:
        steps = bindings.get(script, "total_steps")
    if type(steps) is not int:
        raise ValueError(f"TRAIN_STEPS={steps!r} must be a whole number")
    hardware = bindings.get(script, "use_hardware_rng", False)
    return TrainSettings(
        steps=steps,
        seed=bindings.get(script, "random_seed") or 0,
        random_bits="unsafe_rbg" if hardware else "threefry",
        microbatches=bindings.get(_TRAINER, "num_microbatches") or 1,
    )


def _without_training(bindings: Bindings, script: str, data: DataSettings) -> dict[str, Any]:
    """Return the settings of `evaluate`, `infer` and `precompile`."""
    if script.endswith(".precompile"):
        return {"optimizer": _optimizer(bindings, data, steps=None)}
    return {
        "initialize": checkpoint_path(bindings),
        "evaluate": EvaluateSettings(batches=0),  # the whole split
    }


def checkpoint_path(bindings: Bindings) -> str:
    """Return the checkpoint that a script reads, as the name of a source of weights.

    Raises:
        ValueError: it is not set, or not one folder.
    """
    if not (path := _initial_checkpoint(bindings)):
        raise ValueError(f"{_RESTORE}.path is not set: --gin.CHECKPOINT_PATH=\"'FOLDER'\"")
    return f"t5x:{path}"


def _checkpoint(bindings: Bindings) -> CheckpointSettings:
    every, keep = bindings.get(_SAVE, "period", 1000), bindings.get(_SAVE, "keep")
    if keep is None:  # keep all
        return CheckpointSettings(every=every, keep_every=every)
    return CheckpointSettings(every=every, keep=keep)


def _mesh(bindings: Bindings, script: str) -> MeshSettings:
    partitioner = bindings.get(script, "partitioner")
    name = partitioner.name if isinstance(partitioner, Reference) else ""
    return MeshSettings(model=bindings.get(name, "num_partitions") or 1)


def _decode(bindings: Bindings, *, length: int) -> dict[str, Any]:
    """Return the settings of generation, for T5X's beam search or sampling."""
    model = _model(bindings)
    function = bindings.get(model, "decode_fn", Reference(_MODELS[model].decodes_by))
    _equal(f"{model}.decode_fn", function, dict.fromkeys((_BEAMS, _SAMPLES)))
    settings: dict[str, Any] = {"max_new_tokens": length}

    def get(argument: str, default: Any) -> Any:
        return bindings.get(function.name, argument, default, scope=function.scope)

    if function.name == _BEAMS:
        beams = bindings.get(f"{model}.predict_batch_with_aux", "num_decodes", 1)
        if beams == 1:
            return settings
        # T5X stops when no longer text can have a better score, as "never" does.
        return settings | {
            "num_beams": beams,
            "length_penalty": get("alpha", 0.6),
            "length_penalty_kind": "google_nmt",
            "early_stopping": "never",
        }
    temperature, top_k, top_p = get("temperature", 1.0), get("topk", 1), get("topp", 0.0)
    if not temperature or (top_k == 1 and not top_p):
        return settings
    return settings | {
        "do_sample": True,
        "temperature": float(temperature),
        "top_k": 0 if top_p else top_k,
        "top_p": float(top_p or 1.0),
    }


def _optimizer(bindings: Bindings, data: DataSettings, *, steps: int | None) -> dict[str, Any]:
    """Return the settings of the optimizer and of its learning rate, for a run of `steps`."""
    model = _model(bindings)
    definition = bindings.get(model, "optimizer_def", Reference(_ADAFACTOR))
    name = definition.name if isinstance(definition, Reference) else str(definition)
    normalization, scale = _normalization(bindings, data)
    if name == _ADAFACTOR:
        rate = bindings.get(_TRAINER, "learning_rate_fn", Reference(_RATE))
        return {
            "name": "adafactor",
            **normalization,
            **_adafactor(bindings, scale=scale),
            **_schedule(bindings, f"{_TRAINER}.learning_rate_fn", rate, steps=steps),
        }
    # T5X's Trainer does not set the learning rate of an optimizer of optax.
    parts = bindings.get(name, "transformations") if name == _CHAIN else [definition]
    if not isinstance(parts, Sequence) or not parts:
        raise ValueError(f"{_CHAIN}.transformations={parts!r} must be a list of transformations")
    known = {f"{room}.{rule}": rule for rule in _OPTAX for room in ("optax", "t5x.optimizers")}
    *clips, last = parts
    optax = _OPTAX[_equal(f"{model}.optimizer_def", last, {**known})]
    settings = {"name": optax.name, **normalization}
    settings |= _optax(bindings, last, optax, steps=steps)
    if len(clips) > 1:
        raise ValueError(f"{_CHAIN}.transformations clip {len(clips)} times: once is supported")
    for clip in clips:
        limit, ours = _equal(f"{_CHAIN}.transformations", clip, _CLIPS)
        value = bindings.get(clip.name, limit, scope=clip.scope)
        if type(value) not in (int, float):
            raise ValueError(f"{clip.name}.{limit}={value!r} must be a number")
        settings[ours] = value / scale
    return settings


def _optax(
    bindings: Bindings, reference: Reference, optax: _Optax, *, steps: int | None
) -> dict[str, Any]:
    """Return the settings of an optimizer of optax, with its learning rate."""

    def get(argument: str, default: Any) -> Any:
        return bindings.get(reference.name, argument, default, scope=reference.scope)

    for name, harmless in optax.refused.items():
        if (value := get(name, harmless)) != harmless:
            raise ValueError(f"{reference.name}.{name}={value!r} has no equivalent here")
    settings = {ours: get(theirs, default) for ours, (theirs, default) in optax.settings.items()}
    settings["first_moment"] = settings["first_moment"] or "float32"
    setting = f"{reference.name}.learning_rate"
    return settings | _schedule(bindings, setting, get("learning_rate", None), steps=steps)


def _adafactor(bindings: Bindings, *, scale: float) -> dict[str, Any]:
    """Return the settings of Adafactor; T5X's gradient is `scale` times ours."""
    for name, (harmless, why) in _ADAFACTOR_REFUSED.items():
        value = bindings.get(_ADAFACTOR, name, harmless[0])
        if value not in harmless:
            raise ValueError(f"{_ADAFACTOR}.{name}={value!r} has no equivalent here: {why}")
    # T5X's standard rules factor the matrix of each layer, as here.
    rules = bindings.get(_ADAFACTOR, "logical_factor_rules")
    standard = "t5x.adafactor.standard_logical_factor_rules"
    if rules is not None and rules != Reference(standard):
        raise ValueError(
            f"{_ADAFACTOR}.logical_factor_rules={rules!r} has no equivalent here; @{standard}() has"
        )
    settings = {
        ours: bindings.get(_ADAFACTOR, theirs, default)
        for ours, (theirs, default) in _ADAFACTOR_SETTINGS.items()
    }
    if settings["clipping_threshold"] is None:
        raise ValueError(
            f"{_ADAFACTOR}.clipping_threshold=None has no equivalent here: a number has"
        )
    if not bindings.get(_ADAFACTOR, "factored", True):
        settings["min_dim_size_to_factor"] = sys.maxsize
    limit = float(bindings.get(_ADAFACTOR, "global_norm_clip_threshold") or 0)
    return settings | ({"clip_norm": limit / scale} if limit else {})


def _normalization(bindings: Bindings, data: DataSettings) -> tuple[dict[str, float], int]:
    """Return the setting `loss_normalizing_factor`, and T5X's gradient as a multiple of ours.

    T5X's gradient is the sum of the microbatches' gradients, each normalized separately. {} if that
    is by the real targets, as here: then T5X's gradient is the sum of the means.

    Raises:
        ValueError: each sequence has the same weight, which changes the loss.
    """
    model = _model(bindings)
    factor = bindings.get(model, "loss_normalizing_factor")
    kind = factor.upper() if isinstance(factor, str) else factor
    if isinstance(kind, str):
        _equal(f"{model}.loss_normalizing_factor", kind, {_REAL: None, _TOTAL: None})
    microbatches = bindings.get(_TRAINER, "num_microbatches") or 1
    if kind == _REAL:
        return {}, microbatches
    known = {_TOTAL: data.batch_size * data.lengths["targets"] / microbatches, None: 1.0}
    return {"loss_normalizing_factor": float(known.get(kind, kind))}, 1


def _schedule(bindings: Bindings, setting: str, rate: Any, *, steps: int | None) -> dict[str, Any]:
    """Return the settings of the learning rate: a number, or a schedule of T5X or optax."""
    if type(rate) in (int, float):
        return {"schedule": "constant", "learning_rate": float(rate)}
    schedules: dict[str, Callable[..., dict[str, Any]]] = {
        _RATE: functools.partial(_factors, steps=steps),
        "optax.warmup_cosine_decay_schedule": _warmup_cosine,
    }
    make = _equal(setting, rate, schedules)
    return make(lambda name, default: bindings.get(rate.name, name, default, scope=rate.scope))


def _warmup_cosine(get: Callable[..., Any]) -> dict[str, Any]:
    if (exponent := get("exponent", 1.0)) != 1.0:
        raise ValueError(
            f"optax.warmup_cosine_decay_schedule.exponent={exponent} has no equivalent here: 1 has"
        )
    names = {
        "start_learning_rate": "init_value",
        "learning_rate": "peak_value",
        "warmup_steps": "warmup_steps",
        "decay_steps": "decay_steps",
    }
    values = {ours: get(theirs, None) for ours, theirs in names.items()}
    if missing := [names[ours] for ours, value in values.items() if value is None]:
        raise ValueError(f"optax.warmup_cosine_decay_schedule.{missing[0]} is not set")
    return {"schedule": "cosine", **values, "end_learning_rate": get("end_value", 0.0)}


def _factors(get: Callable[..., Any], *, steps: int | None) -> dict[str, Any]:
    """Return the learning rate schedule for the factors of T5X's schedule.

    Raises:
        ValueError: there is no equivalent, or a run of `steps` is longer than T5X's cosine cycle.
    """
    factors = get("factors", "constant * linear_warmup * rsqrt_decay")
    rate, warmup = float(get("base_learning_rate", 0.5)), get("warmup_steps", 1000)
    slope, cycle = get("decay_factor", 0.5), get("steps_per_cycle", 100_000)
    warms_up = {"learning_rate": rate, "warmup_steps": warmup}
    schedules: dict[str, dict[str, Any]] = {
        "constant": {"schedule": "constant", "learning_rate": rate},
        "constant * linear_warmup": {"schedule": "constant", **warms_up},
        "constant * rsqrt_decay": {"schedule": "rsqrt", **warms_up},
        "constant * rsqrt_normalized_decay": {
            "schedule": "rsqrt",
            "learning_rate": rate * warmup**0.5,
            "warmup_steps": warmup,
        },
        "constant * linear_warmup * rsqrt_decay": {"schedule": "linear_rsqrt", **warms_up},
        "constant * linear_warmup * cosine_decay": {
            "schedule": "cosine",
            **warms_up,
            "decay_steps": warmup + cycle,
        },
        # It falls by `decay_factor` of the base rate a step.
        "linear_decay": {
            "schedule": "linear",
            **warms_up,
            "decay_steps": warmup + round(1 / slope),
        },
    }
    names = " * ".join(re.split(r"\s*\*\s*", factors))
    schedule = _equal(f"{_RATE}.factors", names, schedules)
    offset = get("step_offset", 0)
    if "cosine_decay" in names and steps and steps > warmup + cycle + offset:
        raise ValueError(
            f"{_RATE}.steps_per_cycle={cycle}: the rate starts again after a cycle, which has no "
            f"equivalent here, and the run has {steps} steps: set it to {steps - warmup - offset} "
            "or more"
        )
    if names == "linear_decay" and abs(1 / slope - round(1 / slope)) > 1e-3:
        raise ValueError(f"{_RATE}.decay_factor={slope} must be 1 / a whole number of steps")
    return {**schedule, **({"schedule_offset": offset} if offset else {})}


def _initial_checkpoint(bindings: Bindings) -> str:
    """Return the path of the checkpoint to restore; "" for none."""
    path = bindings.get(_RESTORE, "path") or ""
    if not isinstance(path, str):
        raise ValueError(f"INITIAL_CHECKPOINT_PATH={path!r} must be one folder, as a text")
    if path and (mode := bindings.get(_RESTORE, "mode", "latest")) not in ("specific", "latest"):
        raise ValueError(f"{_RESTORE}.mode={mode!r} has no equivalent here: 'specific' has")
    return path


def _start(bindings: Bindings) -> dict[str, Any]:
    """Return the checkpoint whose parameters, step and optimizer state the run continues from."""
    path = _initial_checkpoint(bindings)
    return {"initialize": f"t5x:{path}", "initialize_optimizer": True} if path else {}
