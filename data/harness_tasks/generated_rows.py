"""The rows of generated data modules as data sets of lm-eval, for the YAML files of this folder.

    python -m t5x_like.evaluate --config=configs/run.py:FOLDER --harness=sums_with_steps \
        --harness_folder=data/harness_tasks

A task names `splits` as its `custom_dataset`, and in `dataset_kwargs` the module, its task and its
settings.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from t5x_like.names import check_settings, choose, import_file


def splits(*, module: str, task: str, settings: Mapping[str, Any], **unused: Any) -> dict[str, Any]:
    """Return {split: `datasets.Dataset`} of a task of a data module that has `corpora`.

    Args:
        module: a file, such as data/languages/arithmetic.py.
        task: the name of its corpus.
        settings: settings of `corpora`.
        unused: what lm-eval adds about the task.

    Raises:
        ValueError: the module, the task or a setting does not exist, or has a wrong value.
    """
    import datasets  # of lm-eval

    made = import_file(
        "dataset_kwargs.module", pathlib.Path(module), name=pathlib.Path(module).stem
    )
    check_settings("dataset_kwargs.settings", made.corpora, settings)
    corpus = choose("dataset_kwargs.task", task, made.corpora(**settings))
    return {
        name: datasets.Dataset.from_list([*split.all_rows()])
        for name, split in corpus.splits.items()
    }
