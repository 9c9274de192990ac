"""Tasks and mixtures of any seqio project, by their names.

    --config.data.module=data/seqio_tasks.py --config.data.settings.modules=my_project.tasks
    --config.data.task=my_task --config.data.vocabulary=my_project/sentencepiece.model

`modules` are the Python modules that add the tasks to seqio's registry: a name, or a list of names,
which must be importable (from the working directory, or installed). A task is used as it is, with
its own source, preprocessors and vocabulary; its postprocessors and metrics are not used
(docs/evaluation.md describes t5x_like's).

`data.objective` only names the form of the task's examples, for the converter and for `infer`:
`text_to_text` or `span_corruption` for the features "inputs" and "targets", `language_modeling` for
only "targets". `data.vocabulary` must give the same tokens as the vocabulary of the task's
features, which is checked.
"""

import importlib
from collections.abc import Sequence
from typing import Any, NoReturn

from t5x_like.names import check_trusted_module
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.vocabularies import Vocabulary


def register(
    vocabulary: Vocabulary, objective: SeqioObjective, *, modules: str | Sequence[str] = ()
) -> None:
    """Import the modules that register tasks.

    Args:
        vocabulary, objective: not used, since the tasks have their own.
        modules: names of Python modules.

    Raises:
        ValueError: `modules` is empty; a module does not exist, or is named by the folder of a run
            that is not trusted.
    """
    del vocabulary, objective
    names = [modules] if isinstance(modules, str) else [*modules]
    if not any(names):
        raise ValueError(
            "data.settings.modules is not set: name the module that adds the tasks to seqio's "
            "registry, as my_project.tasks"
        )
    for name in names:
        check_trusted_module("data.settings.modules", name)
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module exists, and imports one that does not
            raise ValueError(
                f"data.settings.modules={name!r} cannot be imported: {error}. Install its project, "
                "or start the command in its folder"
            ) from error


def documents(split: str, **settings: Any) -> NoReturn:
    """Raise ValueError: no vocabulary is trained on these tasks, since they have their own."""
    del split, settings
    raise ValueError(
        "the tasks of data/seqio_tasks.py have a vocabulary already: set data.vocabulary to it"
    )
