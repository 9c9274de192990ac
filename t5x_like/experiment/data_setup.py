"""The vocabulary, objective, converter and labels that the data settings name."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

from t5x_like import vocabularies
from t5x_like.batches import converters, data_modules
from t5x_like.batches.conversion import Converter, GenerativeConverter
from t5x_like.batches.sharded_batches import Tasks
from t5x_like.config.run_settings import DataSettings
from t5x_like.objectives import Objective, examples_of
from t5x_like.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class DataSetup:
    """The vocabulary, objective, converter and labels of a config's `data`.

    The library that reads the text (TensorFlow, for seqio tasks) is imported only for `tasks`, and
    for labels that the config does not list.

    Attributes:
        data: the data settings.
        vocabulary: the vocabulary of all tasks.
        examples: the features of the objective's examples.
        converter: makes batches from the examples.
    """

    data: DataSettings
    vocabulary: Vocabulary
    examples: Objective
    converter: Converter

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes or tags, see `label_names`."""
        return label_names(self.data)

    def tasks(self) -> Tasks:
        """Register the tasks of the data module, replacing tasks of the same names.

        Raises:
            ValueError: a module, an objective or one of their settings does not exist.
        """
        return tasks_of(self.data, self.vocabulary)


def tasks_of(data: DataSettings, vocabulary: Vocabulary) -> Tasks:
    """Register the tasks of a data module; any vocabulary will do to read only their rows.

    Raises:
        ValueError: a module, an objective or one of their settings does not exist.
    """
    module = data_modules.load(data.module)
    return _TASKS[data_modules.driver_of(module, data.driver)]()(
        module,
        dict(data.settings),
        vocabulary=vocabulary,
        objective=data.objective,
        objective_settings=dict(data.objective_settings),
        tokenized=data.tokenized,
    )


def _tasks_of_seqio() -> Callable[..., Tasks]:
    from t5x_like.preprocessing.pipeline import RegisteredTasks

    return RegisteredTasks


def _tasks_of_grain() -> Callable[..., Tasks]:
    from t5x_like.grain_pipeline.corpus_tasks import CorpusTasks

    return CorpusTasks


_TASKS = {"seqio": _tasks_of_seqio, "grain": _tasks_of_grain}


def build(data: DataSettings, *, start: int | None = None) -> DataSetup:
    """Load the vocabulary, objective and converter; no data is read or registered yet.

    Args:
        start: the first decoder token that the network prescribes, or None; the `start` of
            `data.converter_settings` takes precedence.

    Raises:
        ValueError: an objective, a converter, one of its settings or a vocabulary does not exist.
    """
    vocabulary = vocabularies.load(data.vocabulary)
    examples = examples_of(data.objective, data.objective_settings)
    converter = make_converter(data, examples, vocabulary=vocabulary)
    replaced = start is not None and "start" not in data.converter_settings
    if replaced and isinstance(converter, GenerativeConverter):
        converter = dataclasses.replace(converter, start=start)  # type: ignore[type-var]
    return DataSetup(data, vocabulary, examples, converter)


def make_converter(
    data: DataSettings, examples: Objective, *, vocabulary: Vocabulary | None
) -> Converter:
    """Build the converter of a run; the objective and vocabulary supply defaults of its settings.

    Args:
        vocabulary: None if only the shapes of batches matter.
    """
    settings: dict[str, Any] = {}
    if data.converter in examples.converters:
        settings |= examples.converter_settings
    if vocabulary is not None:
        settings |= converters.find(data.converter).from_vocabulary(vocabulary)
    converter = converters.build(data.converter, **{**settings, **data.converter_settings})
    if data.continue_rows:
        return converter.continued(end=vocabulary.required_id("eos_id") if vocabulary else 0)
    return converter


def label_names(data: DataSettings) -> tuple[str, ...]:
    """Return the names of the classes or tags of the data, in the order of their ids.

    They are `data.settings.labels`, or the result of the function `labels` of `data.module`, which
    gets the objective and, if it has an argument `task`, `data.task`; () if there is neither.

    Raises:
        ValueError: the module does not exist, or its files cannot be read.
    """
    if data.settings.get("labels"):
        return tuple(str(label) for label in data.settings["labels"])
    find = getattr(data_modules.load(data.module), "labels", None)
    if find is None:
        return ()
    arguments = {"task": data.task} if "task" in inspect.signature(find).parameters else {}
    return find(data.objective, **arguments, **data.settings)
