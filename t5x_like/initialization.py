"""What a config leaves to the folder that a run starts from, and to its labelled data."""

import pathlib

import ml_collections

from t5x_like import checkpoints
from t5x_like.hf import folder as files
from t5x_like.hf.sources import open_source
from t5x_like.preprocessing import sources


def complete(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """The config with what it leaves open filled in; itself if it leaves nothing open.

    With `system` "" the system is that of the folder `initialize`, and so are the settings that
    `model` does not have, or has as None; `data.vocabulary` "" is the folder's. With `model.labels`
    0 there are as many classes or tags as `data.module` finds in the data; where
    `data.settings.labels` is empty, it gets their names, so that they stay with the run.

    Raises:
        ValueError: `initialize` is not set, or no folder of a model; or there are no labels to be
            counted.
    """
    config = config.copy_and_resolve_references()
    with config.unlocked():
        if not config.system:
            _complete_model(config)
        if config.model.get("labels") == 0:
            _complete_labels(config)
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
    config.data.vocabulary = config.data.vocabulary or _vocabulary(folder)


def _vocabulary(folder: pathlib.Path) -> str:
    """That of a run or a checkpoint of ours, or the files in a folder of Hugging Face's."""
    config = folder / files.CONFIG
    if config.is_file() and "model_type" in files.read_json(config):
        return str(folder)
    return checkpoints.read_metadata(folder)["config"]["data"]["vocabulary"]


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
