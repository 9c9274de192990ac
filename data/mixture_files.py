"""A weighted mixture of your own corpora, as GPT-3 was trained on (Brown et al. 2020, section 2.2).

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

Weights are relative: the share of a corpus in the training rows is its weight divided by the sum of
all weights, whatever its size, so some corpora are read several times and others not even once. A
run logs the epochs of each corpus, `epochs/mixture_files_books1` and so on, at each evaluation and
at the end. This needs the number of tokens of the corpus in the run's vocabulary, `tokens`; without
it the tokens are counted in one pass over the files at the start. With `tokens` None they are not,
and the epochs are not logged.

Each corpus is also a separate task. Evaluate on these tasks: an evaluation of the mixture reads the
corpora one after the other, and may not reach the last. Files are read as in data/text_files.py,
with `text` as their column; corpora may have different formats.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from t5x_like.names import choose
from t5x_like.preprocessing import cleaning, line_datasets, mixtures, sources
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.preprocessing.task_vocabulary import TaskVocabulary
from t5x_like.vocabularies import Vocabulary

Corpora = Mapping[str, Mapping[str, Any]]

_SETTINGS: dict[str, Any] = {"files": "", "weight": 0, "text": None, "tokens": 0}

_text_files = sources.load_module(str(Path(__file__).with_name("text_files.py")))
# Each phase of a run registers the tasks again; count only once.
_counted: dict[tuple[str, ...], int] = {}


def register(
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    *,
    corpora: Corpora,
    name: str = "mixture_files",
    held_out: float = 0.01,
) -> None:
    """Add a task `<name>_<corpus>` for each corpus, and their mixture `name`.

    Args:
        vocabulary: the vocabulary of the tokens.
        objective: turns the documents into examples.
        corpora: {name: settings}, with the settings `files`, `weight`, `text` and `tokens` above.
        name: name of the mixture.
        held_out: the share of each corpus for validation, from 0 to 1.

    Raises:
        ValueError: `corpora` is empty, a corpus has an unknown setting or a weight of 0 or less, or
            see `text_files.source`.
    """
    rates = {}
    for corpus, settings in _checked(corpora).items():
        source = _source(settings, held_out=held_out)
        key = (str(vocabulary), repr(settings["files"]), repr(settings["text"]), repr(held_out))
        if settings["tokens"] == 0 and key not in _counted:
            _counted[key] = _count(source, vocabulary)
        if settings["tokens"] is not None:
            source.tokens["train"] = settings["tokens"] or _counted[key]
        task = f"{name}_{corpus}"
        sources.add_document_task(task, source=source, vocabulary=vocabulary, objective=objective)
        rates[task] = float(settings["weight"])
    mixtures.mixture(name, list(rates), rate=rates)


def documents(split: str, *, corpora: Corpora, held_out: float = 0.01) -> tf.data.Dataset:
    """Sample documents of all corpora by weight until one corpus ends, {"text": scalar string}.

    A vocabulary is thus trained on a sample of the text that the model reads.
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
    """Return the settings of each corpus, completed with the defaults."""
    if not corpora:
        raise ValueError("data.settings.corpora is empty: name some files and their weights")
    for corpus, settings in corpora.items():
        for setting in settings:
            choose(f"data.settings.corpora.{corpus}", setting, _SETTINGS)
        for setting in ("weight", "tokens"):
            value = settings.get(setting, _SETTINGS[setting])
            if value is None and setting == "tokens":
                continue
            if value < 0 or (setting == "weight" and value == 0):
                least = "above 0" if setting == "weight" else "0 or more"
                raise ValueError(
                    f"data.settings.corpora.{corpus}.{setting}={value} must be {least}"
                )
    return {corpus: _SETTINGS | dict(settings) for corpus, settings in corpora.items()}


def _source(settings: Mapping[str, Any], *, held_out: float) -> sources.FileSource:
    return _text_files.source(files=settings["files"], text=settings["text"], held_out=held_out)


def _count(source: sources.FileSource, vocabulary: Vocabulary) -> int:
    """Count the tokens in the training split, with an end token after each document."""
    texts = cleaning.clean(source.get_dataset("train", shuffle=False))
    sizes = texts.map(
        lambda row: tf.size(TaskVocabulary(vocabulary).encode_tf(row["text"]), tf.int64) + 1,
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    with line_datasets.file_errors():
        return int(sizes.reduce(tf.constant(0, tf.int64), lambda total, size: total + size))
