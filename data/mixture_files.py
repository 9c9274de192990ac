"""Several corpora of your own, each with its weight: GPT-3's mixture (Brown et al. 2020, 2.2).

    config.data.module = "data/mixture_files.py"
    config.data.task = "mixture_files"
    config.data.settings = {
        "corpora": {
            "common_crawl": {"files": "crawl/*.jsonl.gz", "weight": 60, "tokens": 410_000_000_000},
            "webtext2": {"files": "webtext2/*.jsonl.gz", "weight": 22},
            "books1": {"files": ["books/a.txt", "books/b.txt"], "weight": 8},
        }
    }
    config.evaluate.tasks = ("mixture_files_common_crawl", "mixture_files_books1")

A weight is relative: a corpus gives its part of all weights to the rows that are trained on,
however large it is, so that some are read several times while others are not read once. A run tells
how often it has read each, `epochs/mixture_files_books1` and so on, at each evaluation and at the
end. For that it needs the tokens of what it reads of a corpus: `tokens`, by its own vocabulary.
Where they are not given they are counted, by one pass over the files at the start.

Each corpus is a task of its own, too. Evaluate on those: of the mixture an evaluation reads one
after the other, and perhaps not all. Files are as in data/text_files.py, `text` is their column;
corpora may be of different formats.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from t5x_like.names import choose
from t5x_like.preprocessing import cleaning, mixtures, sources
from t5x_like.preprocessing.objectives import Objective
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from t5x_like.vocabularies import Vocabulary

Corpora = Mapping[str, Mapping[str, Any]]

_SETTINGS: dict[str, Any] = {"files": "", "weight": 0, "text": None, "tokens": 0}

_text_files = sources.load_module(str(Path(__file__).with_name("text_files.py")))
# A phase of a run registers again what is counted by then.
_counted: dict[tuple[str, ...], int] = {}


def register(
    vocabulary: Vocabulary,
    objective: Objective,
    *,
    corpora: Corpora,
    name: str = "mixture_files",
    held_out: float = 0.01,
) -> None:
    """Adds a task `<name>_<corpus>` for each corpus, and the mixture `name` of them.

    Args:
        vocabulary: of the tokens.
        objective: what to make of the documents.
        corpora: by their names, `files`, `weight`, `text` and `tokens`, see above.
        name: of the mixture.
        held_out: which part of each corpus is for validation, from 0 to 1.

    Raises:
        ValueError: there are none, a setting that a corpus does not have, a weight that is not
            above 0, or as `text_files.source`.
    """
    rates = {}
    for corpus, settings in _checked(corpora).items():
        source = _source(settings, held_out=held_out)
        key = (str(vocabulary), repr(settings["files"]), repr(settings["text"]), repr(held_out))
        if not settings["tokens"] and key not in _counted:
            _counted[key] = _count(source, vocabulary)
        source.tokens["train"] = settings["tokens"] or _counted[key]
        task = f"{name}_{corpus}"
        sources.add_document_task(task, source=source, vocabulary=vocabulary, objective=objective)
        rates[task] = float(settings["weight"])
    mixtures.mixture(name, list(rates), rate=rates)


def documents(split: str, *, corpora: Corpora, held_out: float = 0.01) -> tf.data.Dataset:
    """Returns {"text": scalar string}: documents of all corpora by their weights, till one ends.

    So a vocabulary is trained on a sample of what a model reads.
    """
    checked = _checked(corpora)
    return tf.data.Dataset.sample_from_datasets(
        [
            _source(settings, held_out=held_out).get_dataset(split, shuffle=False)
            for settings in checked.values()
        ],
        weights=[float(settings["weight"]) for settings in checked.values()],
        seed=0,
        stop_on_empty_dataset=True,
    )


def _checked(corpora: Corpora) -> dict[str, dict[str, Any]]:
    """The settings of each corpus, with those that it leaves out."""
    if not corpora:
        raise ValueError("data.settings.corpora is empty: name some files and their weights")
    for corpus, settings in corpora.items():
        for setting in settings:
            choose(f"data.settings.corpora.{corpus}", setting, _SETTINGS)
        for setting in ("weight", "tokens"):
            value = settings.get(setting, _SETTINGS[setting])
            if value < 0 or (setting == "weight" and value == 0):
                least = "above 0" if setting == "weight" else "0 or more"
                raise ValueError(
                    f"data.settings.corpora.{corpus}.{setting}={value} must be {least}"
                )
    return {corpus: _SETTINGS | dict(settings) for corpus, settings in corpora.items()}


def _source(settings: Mapping[str, Any], *, held_out: float) -> sources.FileSource:
    return _text_files.source(files=settings["files"], text=settings["text"], held_out=held_out)


def _count(source: sources.FileSource, vocabulary: Vocabulary) -> int:
    """The tokens of what is read in training, with one more to end each document."""
    texts = cleaning.clean(source.get_dataset("train", shuffle=False))
    sizes = texts.map(
        lambda row: tf.size(TaskVocabulary(vocabulary).encode_tf(row["text"]), tf.int64) + 1,
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return int(sizes.reduce(tf.constant(0, tf.int64), lambda total, size: total + size))
