"""Fill in the settings that a config leaves to its initial folder or to its data."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from t5x_like import checkpoints, paths, systems, vocabularies
from t5x_like.config.run_settings import DataSettings, RunSettings
from t5x_like.experiment.data_setup import label_names
from t5x_like.experiment.run import AUTO, Part, Run
from t5x_like.hf.architectures import SINGLE, Labels
from t5x_like.names import hint
from t5x_like.objectives import examples_of
from t5x_like.pretrained.weight_source import Source, data_settings, vocabulary_of

# Heads with an objective of the same name, whose rows a prediction writes.
_LABELLED = ("classification", "regression", "tagging", "question_answering", "multiple_choice")
_LONGEST = 512  # tokens in a row of a network that does not have a longest row


def complete(run: Run) -> Run:
    """Fill in the settings that a config leaves open.

    - With `system` "", the folder `initialize` supplies the system, the settings that `model` lacks
      or sets to None, and a `data.vocabulary` of "". With another system than the folder's, it
      supplies only the settings that both systems have and `model` sets to None, and the
      vocabulary.
    - With `data.converter` "", the converter and `data.lengths` of 0 are copied from the folder's
      run, or chosen to suit the network of a Hugging Face folder.
    - With `model.labels` 0, the classes or tags that `data.module` finds in the data are counted;
      an empty `data.settings.labels` gets their names, so that they are stored with the run. They
      are in the order of the folder `initialize`, if its head has the same names.
    - With several `tasks` that have heads, `model.head` becomes the mapping {task: head}.
    - If a task's `batches` is "auto", its training rows are counted.

    Raises:
        ValueError: `initialize` is not set or not the folder of a model, or the data have no labels
            to count.
    """
    if not run.settings.system or None in run.settings.model.values():
        run = _with_model(run)
    for part in run.parts:
        if part.model.get("labels") == 0:
            run = _with_labels(run, part)
        if part.batches == AUTO:
            rows = part.text.tasks().number_of_rows(part.data.task, split="train")
            run = _with_task(run, part.name, {"batches": -(-rows // part.data.batch_size)})
    return run.replace(model=run.network) if run.heads else run


def _with_task(run: Run, name: str, changes: Mapping[str, Any]) -> Run:
    tasks = run.settings.tasks
    return run.replace(tasks={**tasks, name: {**tasks[name], **changes}})


def _with_model(run: Run) -> Run:
    settings, source = run.settings, run.source
    unset = [f"model.{name}" for name, value in settings.model.items() if value is None]
    if source is None:
        raise ValueError(
            "initialize is not set: --config.initialize=FOLDER, the model to start from (or name "
            f"the system, and set {', '.join(unset) or 'model'})"
        )
    changes = {name: value for name, value in settings.model.items() if value is not None}
    model = _settings_of(source, settings.model if settings.system else {})
    stored, folder = data_settings(source), str(paths.path(settings.initialize))
    if source.lora:  # an adapter has no tokenizer, and its base model has
        folder = vocabulary_of(source)
    vocabulary = settings.data.vocabulary or stored.get("vocabulary", folder)
    settings = dataclasses.replace(
        settings,
        model={**model, **changes},
        system=settings.system or source.system,
        data=dataclasses.replace(settings.data, vocabulary=vocabulary),
    )
    data = settings.data if settings.data.converter else _with_converter(settings, stored)
    return run.replace(model=settings.model, system=settings.system, data=data)


def _settings_of(source: Source, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the network settings in the folder: all, or the settings named in `model`.

    Raises:
        ValueError: `model` sets one to None that the folder's system does not have.
    """
    for name in (name for name, value in model.items() if value is None):
        if name not in source.config:
            raise ValueError(
                f"model.{name} is not set, and the folder in initialize has a {source.system!r}, "
                "without such a setting: set it, or start from another folder"
            )
    return {name: source.config[name] for name in model or source.config if name in source.config}


def _with_converter(settings: RunSettings, stored: Mapping[str, Any]) -> DataSettings:
    """Return data settings with the converter and lengths of the folder's run or network."""
    data, model = settings.data, settings.model
    network = systems.build(settings.system, model)
    encodes = network.sides == ("encoder", "decoder")
    if not stored and not network.generates:
        return _of_encoder(data, model)
    if stored:
        examples = examples_of(stored["objective"], stored["objective_settings"])
        special_tokens = examples.special_tokens
    else:
        longest = model.get("positions") or _LONGEST
        lengths = dict.fromkeys(("inputs", "targets") if encodes else ("targets",), longest)
        converter = "encoder_decoder" if encodes else "decoder"
        stored = {"converter": converter, "converter_settings": {}, "lengths": lengths}
        vocabulary = vocabularies.load(data.vocabulary)
        # BART's. mBART and BigBird-Pegasus have such a token, but start no text with it.
        special_tokens = encodes and vocabulary.prefix_ids == (vocabulary.cls_id,)
    marked = special_tokens and data.objective == "text_to_text"
    own_lengths = {name: size for name, size in data.lengths.items() if size}
    return dataclasses.replace(
        data,
        objective="marked_text_to_text" if marked else data.objective,
        converter=stored["converter"],
        converter_settings=stored["converter_settings"],
        lengths={**stored["lengths"], **own_lengths},
    )


def _of_encoder(data: DataSettings, model: Mapping[str, Any]) -> DataSettings:
    """Return data settings with the objective, converter and lengths for an encoder's head."""
    head = model.get("head", "")
    if head in _LABELLED:
        data = dataclasses.replace(data, objective=head, objective_settings={})
    return dataclasses.replace(
        data,
        converter="encoder_rows" if head == "multiple_choice" else "encoder",
        converter_settings={},
        lengths={"inputs": data.lengths.get("inputs") or model.get("positions") or _LONGEST},
    )


def _with_labels(run: Run, part: Part) -> Run:
    """Count the labels of a task, and store their names if its data settings lack them."""
    data, names = part.data, label_names(part.data)
    if not names:
        raise ValueError(
            f"model.labels=0 counts the labels of the data, and data.module={data.module!r} has "
            f"none for data.objective={data.objective!r}: set model.labels"
        )
    if len(names) == 1:
        raise ValueError(
            f"data.module={data.module!r} has a single label for data.objective="
            f"{data.objective!r}, {names[0]!r}: a model needs 2 or more to tell apart"
        )
    labels = {"labels": len(names)}
    named = dict(data.settings)
    if "labels" in named and not named["labels"]:
        head = _head_of_source(run, part)
        named["labels"] = head.names if sorted(head.names) == sorted(names) else names
    if not part.name:
        data = dataclasses.replace(run.settings.data, settings=named)
        return run.replace(model={**run.settings.model, **labels}, data=data)
    task = run.settings.tasks[part.name]
    changes: dict[str, Any] = {"model": {**task.get("model", {}), **labels}}
    if "settings" in task.get("data", {}):
        changes["data"] = {**task["data"], "settings": named}
    return _with_task(run, part.name, changes)


def _head_of_source(run: Run, part: Part) -> Labels:
    """Return the labels of the head that a task starts from; no names without such a head."""
    try:
        source = run.source
    except ValueError:  # a study is planned before the run that another starts from is trained
        return Labels()
    if source is None or source.config.get("head") != part.model.get("head"):
        return Labels()
    return source.labels.get(part.name, Labels())


def check_labels(run: Run) -> None:
    """Check the labels of the heads that a run starts from.

    Raises:
        ValueError: a head has the labels of the data in another order, or gives a text several.
    """
    for part in run.parts:
        head, names = _head_of_source(run, part), part.text.labels
        if not names or len(head.names) != len(names):
            continue  # the head is new
        folder = f"initialize={run.settings.initialize!r}"
        if head.problem not in ("", SINGLE):
            raise ValueError(
                f"{folder} has problem_type={head.problem!r}, and a run trains one class for each "
                "text: start from a folder without this head"
            )
        if head.names != names and sorted(head.names) == sorted(names):
            raise ValueError(
                f"the head of {folder} has the labels {', '.join(head.names)}, and the data "
                f"{', '.join(names)}: set data.settings.labels to the order of the head"
            )


def origin(run: Run) -> dict[str, str]:
    """Return metadata about the run's initial folder for checkpoints: its HF `model_type`.

    The type is "" if the run started from random weights or from another system.
    """
    folder = paths.path(run.settings.workdir) / "checkpoints"
    if checkpoints.agreed_steps(folder):
        return {"model_type": checkpoints.read_metadata(folder).get("model_type", "")}
    source = run.source
    same = source is not None and source.system == run.settings.system
    return {"model_type": source.model_type if source and same else ""}


def labels(run: Run) -> dict[str, dict[str, Any]]:
    """Return metadata for checkpoints: {task: fields of `hf.architectures.Labels`}.

    Raises:
        ValueError: see `label_names`.
    """
    named = {part.name: part.text.labels for part in run.parts}
    return {task: {"names": list(names)} for task, names in named.items() if names}


def model_folder(settings: RunSettings, *, checkpoint: str | None) -> pathlib.Path:
    """Return the folder of a command's model: the given checkpoint, or the run's checkpoints.

    Without a `workdir` or checkpoint it is the folder `initialize`. The checkpoint "best" is the
    best checkpoint of the run, see `checkpoints.locate`.

    Raises:
        ValueError: neither a checkpoint, `workdir` nor `initialize` is set, or the checkpoint does
            not exist.
    """
    if not (checkpoint or settings.workdir or settings.initialize):
        raise ValueError("there is no model: set --config.workdir=FOLDER of a run, or --checkpoint")
    if checkpoint == "best" and settings.workdir:
        return paths.path(settings.workdir) / "checkpoints" / "best"
    of_run = paths.path(settings.workdir) / "checkpoints"
    if checkpoint and ":" not in str(checkpoint) and not paths.path(checkpoint).exists():
        known = [str(step) for step in of_run.glob("*/")] if settings.workdir else []
        raise ValueError(
            f"--checkpoint={checkpoint!r}: there is no folder {checkpoint}: give the folder of a "
            f"checkpoint, or best.{hint(checkpoint, known)}"
        )
    if checkpoint or not settings.workdir:
        return paths.path(checkpoint or settings.initialize)
    return of_run
