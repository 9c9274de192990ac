r"""Tokenize the documents of a config once, into a folder that later runs read instead of text.

    python -m t5x_like.tokenize --config=configs/t5.py:small --output=runs/tokens \
        --config.data.module=data/grain_files.py --config.data.task=grain_files \
        --config.data.settings.files="corpus/*.jsonl" --config.data.vocabulary=vocabulary.model

Then train with the same flags and --config.data.tokenized=runs/tokens. Documents that grain reads
become ArrayRecord files, and the training batches are identical to those without the folder. seqio
tasks, as in data/c4.py, become seqio's offline cache. data.task and evaluate.tasks are cleaned and
tokenized in all their splits. Lengths, seed, batch size and, if it tokenizes alike, the objective
may change from run to run, since they apply after tokenization. After an interruption the same
command writes the missing files. docs/data.md explains what the folder contains, and when it no
longer fits a config.
"""

if __name__ == "__main__":
    from t5x_like.experiment import command_line

    SETTINGS = command_line.start(
        __doc__,
        computes=False,
        output=(None, "folder to write"),
        processes=(0, "that tokenize at once; 0: as many as this machine has CPUs"),
    )

import os
import pathlib
from typing import Any

from absl import flags

from t5x_like.batches import data_modules, tokenized_folder
from t5x_like.config import RunSettings, one_line_errors
from t5x_like.experiment import command_line
from t5x_like.grain_pipeline import tokenized_documents


def tokenize(settings: RunSettings) -> None:
    """Write the folder given by --output; a mistake prints one line and exits with status 2."""
    with one_line_errors(ValueError, OSError):
        output, processes = flags.FLAGS.output, flags.FLAGS.processes
        if not output or "://" in output:
            raise ValueError(f"--output={output!r} must be a folder of this machine")
        if processes < 0:
            raise ValueError(f"--processes={processes} must be 0 or more")
        if settings.tasks:
            raise ValueError(
                "the config has several tasks, and each may have other data: give a config of one, "
                "and set data.tokenized in tasks.NAME.data"
            )
        command_line.check_folder("--output", pathlib.Path(output).expanduser())
        processes = processes or os.cpu_count() or 1
        for complete, files in tokenized_folder.write(_text(settings), output, processes=processes):
            print(f"{complete:,} of {files:,} files", flush=True)
    print(f"{output}: read it by --config.data.tokenized={output}")


def _text(settings: RunSettings) -> tokenized_folder.TextSource:
    """Return the text of a run, to be read by grain or seqio, depending on the data module."""
    data = settings.data
    text: dict[str, Any] = {
        "module": data.module,
        "settings": dict(data.settings),
        "vocabulary": data.vocabulary,
        "tasks": tuple(dict.fromkeys((data.task, *settings.evaluate.tasks))),
    }
    if data_modules.driver_of(data_modules.load(data.module), data.driver) == "grain":
        return tokenized_documents.CorpusText(**text)
    from t5x_like.preprocessing.offline_caching import TextOfTasks  # loads TensorFlow

    objective_settings = dict(data.objective_settings)
    return TextOfTasks(**text, objective=data.objective, objective_settings=objective_settings)


if __name__ == "__main__":
    tokenize(SETTINGS)
