"""What a config leaves to the folder that a run starts from, and to its labelled data."""

import pathlib
from collections.abc import Mapping
from typing import Any

import ml_collections

from t5x_like import checkpoints, systems, vocabularies
from t5x_like.experiment.tasks import RunTask, heads, run_tasks
from t5x_like.hf import folder as files
from t5x_like.preprocessing import objectives, sources
from t5x_like.pretrained.weight_source import open_source

_LONGEST = 512  # tokens that an encoder-decoder without a table of positions reads and writes


def complete(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """The config with what it leaves open filled in; itself if it leaves nothing open.

    With `system` "" the system is that of the folder `initialize`, and so are the settings that
    `model` does not have, or has as None; `data.vocabulary` "" is the folder's, and with
    `data.converter` "" it and the `data.lengths` that are 0 are those that a run was trained with,
    or of another folder what its network reads. With `model.labels`
    0 there are as many classes or tags as `data.module` finds in the data; where
    `data.settings.labels` is empty, it gets their names, so that they stay with the run. With
    several `tasks` that have heads, `model.head` becomes their mapping, as the network needs it.

    Raises:
        ValueError: `initialize` is not set, or no folder of a model; or there are no labels to be
            counted.
    """
    config = config.copy_and_resolve_references()
    with config.unlocked():
        if not config.system:
            _complete_model(config)
        for task in run_tasks(config):
            if task.settings.model.get("labels") == 0:
                _complete_labels(task.settings)
                _keep_labels(config, task)
        if config.tasks and (with_heads := heads(config)):
            config.model = config.model.to_dict() | {"head": with_heads}
    return config


def _complete_model(config: ml_collections.ConfigDict) -> None:
    if not config.initialize:
        raise ValueError(
            "initialize is not set: --config.initialize=FOLDER, the model to start from (or name "
            "the system)"
        )
    folder = pathlib.Path(config.initialize).expanduser()
    source = open_source(folder)
    config.system = source.system
    changes = {name: value for name, value in config.model.items() if value is not None}
    config.model = source.config | changes
    is_run = not files.is_hugging_face(folder)
    data = checkpoints.read_metadata(folder)["config"].get("data", {}) if is_run else {}
    config.data.vocabulary = config.data.vocabulary or data.get("vocabulary", str(folder))
    if not config.data.converter:
        _complete_reading(config, data)


def _complete_reading(config: ml_collections.ConfigDict, data: Mapping[str, Any]) -> None:
    """How the network reads a batch: as the `data` of the run says, else what fits the network."""
    encodes = systems.build(config.system, config.model.to_dict()).sides == ("encoder", "decoder")
    if data:
        special_tokens = objectives.build(
            data["objective"], **data["objective_settings"]
        ).special_tokens
    else:
        longest = config.model.get("positions") or (_LONGEST if encodes else 0)
        lengths = dict.fromkeys(("inputs", "targets") if encodes else ("targets",), longest)
        converter = "encoder_decoder" if encodes else "decoder"
        data = {"converter": converter, "converter_settings": {}, "lengths": lengths}
        first = vocabularies.load(config.data.vocabulary).cls_id
        special_tokens = encodes and first is not None  # BART's
    if special_tokens and config.data.objective == "text_to_text":
        config.data.objective = "marked_text_to_text"
    config.data.converter = data["converter"]
    config.data.converter_settings = data["converter_settings"]
    given = {name: size for name, size in config.data.lengths.items() if size}
    config.data.lengths = {**data["lengths"], **given}


def model_folder(config: ml_collections.ConfigDict, *, checkpoint: str | None) -> pathlib.Path:
    """The model that a command is about: a checkpoint that is named, or the newest of the run.

    A config without a `workdir` is of no run, and means the folder `initialize`.
    """
    if checkpoint or not config.workdir:
        return pathlib.Path(checkpoint or config.initialize).expanduser()
    return pathlib.Path(config.workdir) / "checkpoints"


def label_names(config: ml_collections.ConfigDict) -> tuple[str, ...]:
    """The names of the classes or tags of a config's data, in the order of their numbers.

    They are `data.settings.labels`, or what the function `labels` of `data.module` gives for the
    objective; none where there is neither.

    Raises:
        ValueError: no such module, or files that cannot be read.
    """
    data = config.data
    if data.settings.get("labels"):
        return tuple(str(one) for one in data.settings.labels)
    find = getattr(sources.load_module(data.module), "labels", None)
    return find(data.objective, **data.settings.to_dict()) if find else ()


def _complete_labels(config: ml_collections.ConfigDict) -> None:
    data = config.data
    names = label_names(config)
    if not names:
        raise ValueError(
            f"model.labels=0 is for data that tells its labels, and data.module={data.module!r} "
            f"has none for data.objective={data.objective!r}: set model.labels"
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
