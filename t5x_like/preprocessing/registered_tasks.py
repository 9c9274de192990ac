"""The tasks of a data module that registers them with seqio."""

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from t5x_like.batches.sharded_batches import ShardedBatches
from t5x_like.preprocessing import data_files, mixtures, objectives, pipeline, sources
from t5x_like.preprocessing.offline_cache import OfflineCache, Origin
from t5x_like.preprocessing.task_vocabulary import check_same_tokens
from t5x_like.vocabularies import Vocabulary


class RegisteredTasks:
    """The tasks and mixtures of a data module, registered anew under their names.

    Args:
        module: a module with the function `register`.
        settings: its settings.
        vocabulary: the vocabulary of all tasks.
        objective: the name of the objective.
        objective_settings: its settings.
        tokenized: a folder of seqio's offline cache to read instead of tokenizing; "" to tokenize.

    Raises:
        ValueError: an objective, a setting or the folder does not exist.
    """

    def __init__(
        self,
        module: ModuleType,
        settings: Mapping[str, Any],
        *,
        vocabulary: Vocabulary,
        objective: str,
        objective_settings: Mapping[str, Any],
        tokenized: str = "",
    ):
        made = objectives.build(objective, **objective_settings)
        sources.check_settings(module.register, settings)
        module.register(vocabulary, made, **settings)
        self._settings, self._vocabulary = settings, vocabulary
        origin = Origin(vocabulary, settings, objective, objective_settings)
        self._cache = OfflineCache(tokenized, origin) if tokenized else None

    def batches(self, task: str, *, split: str, **settings: Any) -> ShardedBatches:
        """Return the batches of a task; see `pipeline.Batches`.

        Raises:
            ValueError: see `pipeline.Batches`; or the task has another vocabulary.
        """
        for one in pipeline.tasks_of(task):
            check_same_tokens(one, self._vocabulary)
        return pipeline.Batches(task, split=split, cache=self._cache, **settings)

    def rows(self, task: str, *, split: str, cleaned: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the rows of a task's source; see `pipeline.source_rows`."""
        return pipeline.source_rows(task, split=split, cleaned=cleaned)

    def number_of_rows(self, task: str, *, split: str) -> int:
        """Return the number of rows of a task's source; raise ValueError if it is unknown."""
        return mixtures.number_of_examples(pipeline.find(task, split=split), split=split)

    def files(self, *tasks: str) -> dict[str, list[str]]:
        """Return the files that tasks read; see `data_files.paths`."""
        return data_files.paths(tasks, self._settings)
