"""Fill in the settings that a config leaves to the folder it starts from, or to its labels."""

import pathlib
from collections.abc import Mapping
from typing import Any

import ml_collections

from t5x_like import checkpoints, paths, systems, vocabularies
from t5x_like.batches.objective_examples import examples_of
from t5x_like.experiment.tasks import AUTO, RunTask, heads, run_tasks
from t5x_like.experiment.text_data import label_names, training_rows
from t5x_like.names import hint
from t5x_like.pretrained.weight_source import Source, data_settings, open_source

# Heads with an objective of the same name, whose rows a prediction writes.
_LABELLED = ("classification", "regression", "tagging", "question_answering", "multiple_choice")
_LONGEST = 512  # tokens that an encoder-decoder without a table of positions reads and writes


def complete(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Fill in the settings that a config leaves open.

    - With `system` "" the folder `initialize` decides the system, the settings that `model` lacks
      or sets to None, and a `data.vocabulary` of "". With another system than the folder's it
      decides the settings that both systems have and `model` sets to None, and the vocabulary.
    - With `data.converter` "" the converter and the `data.lengths` of 0 are those that the folder's
      run was trained with, or for a folder of Hugging Face's those that suit its network.
    - With `model.labels` 0 the classes or tags that `data.module` finds in the data are counted;
      where `data.settings.labels` is empty it gets their names, so that they stay with the run.
    - With several `tasks` that have heads, `model.head` becomes their mapping.
    - Where a task's `batches` are "auto" its training rows are counted.

    Returns:
        A copy of the config.

    Raises:
        ValueError: `initialize` is not set, or no folder of a model; or there are no labels to be
            counted.
    """
    config = config.copy_and_resolve_references()
    with config.unlocked():
        if not config.system or None in config.model.values():
            _complete_model(config)
        for task in run_tasks(config):
            if task.settings.model.get("labels") == 0:
                _complete_labels(task.settings)
                _keep_labels(config, task)
            if task.batches == AUTO:
                rows = training_rows(task.settings)
                with config.ignore_type():
                    config.tasks[task.name].batches = -(-rows // task.settings.data.batch_size)
        if config.tasks and (with_heads := heads(config)):
            config.model = config.model.to_dict() | {"head": with_heads}
    return config


def _complete_model(config: ml_collections.ConfigDict) -> None:
    if not config.initialize:
        raise ValueError(
            "initialize is not set: --config.initialize=FOLDER, the model to start from (or name "
            "the system)"
        )
    folder = paths.path(config.initialize)
    source = open_source(folder)
    changes = {name: value for name, value in config.model.items() if value is not None}
    config.model = {**_settings_of(source, config.model if config.system else {}), **changes}
    config.system = config.system or source.system
    data = data_settings(source)
    config.data.vocabulary = config.data.vocabulary or data.get("vocabulary", str(folder))
    if not config.data.converter:
        _complete_converter(config, data)


def _settings_of(source: Source, model: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the network in the folder, or those that `model` sets to None.

    Raises:
        ValueError: the folder's system does not have one.
    """
    for name in (name for name, value in model.items() if value is None):
        if name not in source.config:
            raise ValueError(
                f"model.{name} is not set, and the folder in initialize has a {source.system!r}, "
                "without such a setting: set it, or start from another folder"
            )
    return {name: source.config[name] for name in model or source.config if name in source.config}


def _complete_converter(config: ml_collections.ConfigDict, data: Mapping[str, Any]) -> None:
    """Set the converter and lengths of the run in the folder, or those that suit the network."""
    network = systems.build(config.system, config.model.to_dict())
    encodes = network.sides == ("encoder", "decoder")
    if not data and not network.generates:
        _complete_rows(config)
        return
    if data:
        examples = examples_of(data["objective"], data["objective_settings"])
        special_tokens = examples.special_tokens
    else:
        longest = config.model.get("positions") or (_LONGEST if encodes else 0)
        lengths = dict.fromkeys(("inputs", "targets") if encodes else ("targets",), longest)
        converter = "encoder_decoder" if encodes else "decoder"
        data = {"converter": converter, "converter_settings": {}, "lengths": lengths}
        found = vocabularies.load(config.data.vocabulary)
        # BART's; mBART and BigBird-Pegasus have such a token that begins no text.
        special_tokens = encodes and found.prefix_ids == (found.cls_id,)
    if special_tokens and config.data.objective == "text_to_text":
        config.data.objective = "marked_text_to_text"
    config.data.converter = data["converter"]
    config.data.converter_settings = data["converter_settings"]
    given = {name: size for name, size in config.data.lengths.items() if size}
    config.data.lengths = {**data["lengths"], **given}


def _complete_rows(config: ml_collections.ConfigDict) -> None:
    """Set the objective, converter and lengths that suit the head of an encoder."""
    head = config.model.get("head", "")
    if head in _LABELLED:
        config.data.objective = head
        config.data.objective_settings = {}
    config.data.converter = "encoder_rows" if head == "multiple_choice" else "encoder"
    config.data.converter_settings = {}
    given = config.data.lengths.get("inputs") or config.model.get("positions") or _LONGEST
    config.data.lengths = {"inputs": given}


def origin(config: ml_collections.ConfigDict) -> dict[str, str]:
    """What checkpoints keep of the folder that the run started from: Hugging Face's `model_type`.

    It is empty where the run started with random weights, or from another system.
    """
    folder = paths.path(config.workdir) / "checkpoints"
    if checkpoints.agreed_steps(folder):
        return {"model_type": checkpoints.read_metadata(folder).get("model_type", "")}
    if not config.initialize:
        return {"model_type": ""}
    source = open_source(paths.path(config.initialize))
    return {"model_type": source.model_type if source.system == config.system else ""}


def labels(config: ml_collections.ConfigDict) -> dict[str, dict[str, Any]]:
    """What checkpoints keep of the labels of each task's head: fields of `hf.head_labels.Labels`.

    Raises:
        ValueError: as `label_names`.
    """
    named = {task.name: label_names(task.settings) for task in run_tasks(config)}
    return {task: {"names": list(names)} for task, names in named.items() if names}


def model_folder(config: ml_collections.ConfigDict, *, checkpoint: str | None) -> pathlib.Path:
    """The folder of a command's model: the given checkpoint, or the checkpoints of the run.

    A config without a `workdir` has no run; its model is the folder `initialize`. The checkpoint
    "best" is the best one of the run, see `checkpoints.locate`.

    Raises:
        ValueError: none of them is set, or there is no such checkpoint.
    """
    if not (checkpoint or config.workdir or config.initialize):
        raise ValueError("there is no model: set --config.workdir=FOLDER of a run, or --checkpoint")
    if checkpoint == "best" and config.workdir:
        return paths.path(config.workdir) / "checkpoints" / "best"
    of_run = paths.path(config.workdir) / "checkpoints"
    if checkpoint and ":" not in str(checkpoint) and not paths.path(checkpoint).exists():
        known = [str(one) for one in of_run.glob("*/")] if config.workdir else []
        raise ValueError(
            f"--checkpoint={checkpoint!r}: there is no folder {checkpoint}: give the folder of a "
            f"checkpoint, or best.{hint(checkpoint, known)}"
        )
    if checkpoint or not config.workdir:
        return paths.path(checkpoint or config.initialize)
    return of_run


def _complete_labels(config: ml_collections.ConfigDict) -> None:
    data = config.data
    names = label_names(config)
    if not names:
        raise ValueError(
            f"model.labels=0 counts the labels of the data, and data.module={data.module!r} has "
            f"none for data.objective={data.objective!r}: set model.labels"
        )
    config.model.labels = len(names)
    if "labels" in data.settings and not data.settings.labels:
        data.settings.labels = names


def _keep_labels(config: ml_collections.ConfigDict, task: RunTask) -> None:
    """Set the labels that were found for one of several tasks in the config of the run."""
    if not task.name:
        return
    own = config.tasks[task.name]
    own.model.labels = task.settings.model.labels
    if "data" in own and "settings" in own.data:
        own.data.settings = task.settings.data.settings
