"""How a run reads text: one object, made once from its config, for all that reads or predicts."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_collections

from t5x_like import systems, vocabularies
from t5x_like.batches import converters, data_modules
from t5x_like.batches.conversion import Converter, GenerativeConverter
from t5x_like.batches.objective_examples import Examples, examples_of
from t5x_like.batches.sharded_batches import Tasks
from t5x_like.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class TextData:
    """The vocabulary, objective, converter and labels of a config's `data`.

    It needs what reads the text (TensorFlow, for seqio's tasks) only for `tasks`, and for labels
    that the config does not list.

    Attributes:
        config: the config.
        vocabulary: the vocabulary of all tasks.
        examples: what the objective's examples contain.
        converter: makes batches of the examples.
    """

    config: ml_collections.ConfigDict
    vocabulary: Vocabulary
    examples: Examples
    converter: Converter

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """See `label_names`."""
        return label_names(self.config)

    def tasks(self) -> Tasks:
        """The tasks of the data module, in place of those of the same names.

        The module decides how its text is read: by seqio if it registers tasks there, by grain and
        without TensorFlow if it has corpora.

        Raises:
            ValueError: a module, an objective or one of their settings does not exist.
        """
        data = self.config.data
        module = data_modules.load(data.module)
        return _kind_of_tasks(module, tokenized=data.get("tokenized", ""))(
            module,
            data.settings.to_dict(),
            vocabulary=self.vocabulary,
            objective=data.objective,
            objective_settings=data.objective_settings.to_dict(),
        )


def _kind_of_tasks(module: ModuleType, *, tokenized: str) -> Callable[..., Tasks]:
    if hasattr(module, data_modules.CORPORA):
        from t5x_like.grain_pipeline.corpus_tasks import CorpusTasks

        return functools.partial(CorpusTasks, tokenized=tokenized)
    from t5x_like.preprocessing.registered_tasks import RegisteredTasks

    return functools.partial(RegisteredTasks, tokenized=tokenized)


def build(config: ml_collections.ConfigDict) -> TextData:
    """The text data of a config, or of a phase of one; nothing is read or registered yet.

    Raises:
        ValueError: an objective, a converter, a setting of it or a vocabulary does not exist.
    """
    data = config.data
    vocabulary = vocabularies.load(data.vocabulary)
    examples = examples_of(data.objective, data.objective_settings)
    converter = make_converter(data, examples, vocabulary=vocabulary)
    return TextData(config, vocabulary, examples, _with_own_start(converter, config))


def _with_own_start(converter: Converter, config: ml_collections.ConfigDict) -> Converter:
    """A converter whose decoder rows begin with the network's own token, if it has one.

    Pegasus begins with padding and mBART with a language, whatever their vocabulary's begin is.
    """
    if not config.system or not isinstance(converter, GenerativeConverter):
        return converter
    setting = systems.find(config.system).generation.get("decoder_start_token_id", "")
    start = config.model.get(setting)
    if start is None or "start" in config.data.converter_settings:
        return converter
    return dataclasses.replace(converter, start=start)  # type: ignore[type-var]


def make_converter(
    data: ml_collections.ConfigDict, examples: Examples, *, vocabulary: Vocabulary | None
) -> Converter:
    """The converter of a config, with the settings of its objective and vocabulary as defaults.

    Args:
        vocabulary: None where only the shapes of batches matter.
    """
    settings: dict[str, Any] = {}
    if data.converter in examples.converters:
        settings |= examples.converter_settings
    if vocabulary is not None:
        settings |= converters.find(data.converter).from_vocabulary(vocabulary)
    settings |= data.converter_settings.to_dict()
    converter = converters.build(data.converter, **settings)
    if data.get("continue_rows"):
        return converter.continued(end=vocabulary.required_id("eos_id") if vocabulary else 0)
    return converter


def label_names(config: ml_collections.ConfigDict) -> tuple[str, ...]:
    """The names of the classes or tags of a config's data, in the order of their numbers.

    They are `data.settings.labels`, or the result of the function `labels` of `data.module` for
    the objective, and for `data.task` if it has an argument `task`; none without either.

    Raises:
        ValueError: no such module, or files that cannot be read.
    """
    data = config.data
    if data.settings.get("labels"):
        return tuple(str(one) for one in data.settings.labels)
    find = getattr(data_modules.load(data.module), "labels", None)
    if find is None:
        return ()
    own = {"task": data.task} if "task" in inspect.signature(find).parameters else {}
    return find(data.objective, **own, **data.settings.to_dict())


def training_rows(config: ml_collections.ConfigDict) -> int:
    """The number of training rows of the source of `data.task`.

    Raises:
        ValueError: a module or a task that does not exist, or a source that does not know.
    """
    return build(config).tasks().number_of_rows(config.data.task, split="train")
