"""PyGLUE: nine tasks made from the documentation of the installed Python, without a download.

    --config.data.module=data/pyglue.py
    --config.data.task=pyglue_topic --config.data.objective=classification   one task, for a head
    --config.data.task=pyglue --config.data.objective=text_to_text           all tasks as text
    --config.data.task=pyglue_text --config.data.objective=span_corruption   to pretrain

| task | a row | kind | measured by |
|---|---|---|---|
| acceptability | a sentence, as it is or with five words shuffled | classification | Matthews |
| topic | a description without names of packages; its package | classification | accuracy |
| similarity | two descriptions; 0 to 5, how close the described are | regression | Pearson |
| paraphrase | two descriptions, of namesakes or not | classification | accuracy, F1 |
| entailment | a signature, and a description of its parameter or not | classification | accuracy |
| span | a question about described parameters | question_answering | exact match, F1 |
| continuation | a sentence and four candidates for the next | multiple_choice | accuracy |
| ranking | a description and four candidate continuations | multiple_choice | reciprocal rank |
| summary | a docstring without its first sentence; this sentence | text only | ROUGE |

The rows are JSON Lines files in the schemas of labelled_files.py and prompted_files.py, in a cache
(`$T5X_LIKE_CACHE/pyglue`), the same on every run with one installation of Python and packages. The
split of a row depends on its source: modules of one name, such as "linalg" in NumPy, SciPy and JAX,
are all in training, validation or test, and a text of a later split never occurs in an earlier one.
Task `pyglue_topic_test` evaluates on the test rows of `pyglue_topic`; nothing else reads them.

docs/pyglue.md has the sizes, and the results of a constant, a bag of words and a rule:

    python -m data.pyglue_baselines
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from t5x_like.names import choose, import_file
from t5x_like.preprocessing import mixtures, sources
from t5x_like.preprocessing.benchmark_tasks import LABELLED_OBJECTIVES, TEXT_TO_TEXT
from t5x_like.preprocessing.seqio_objectives import SeqioObjective
from t5x_like.preprocessing.sources import ColumnSource, TensorColumns, columns
from t5x_like.vocabularies import Vocabulary

_HERE = Path(__file__)
_labelled = sources.load_module(str(_HERE.with_name("labelled_files.py")))
_made, _texts = (
    import_file("data.module", _HERE.with_name(f"{name}.py"), name=f"data.{name}")
    for name in ("pyglue_rows", "pyglue_texts")
)
TASKS: Mapping[str, Any] = _made.TASKS

_PAIRS = ("paraphrase", "entailment")
_OF_LABELS = [name for names in LABELLED_OBJECTIVES.values() for name in names]
# Measure settings of the tasks that are trained with a head.
_HEADS: dict[str, dict[str, Any]] = {
    "acceptability": {"metrics": ("matthews", "accuracy")},
    "paraphrase": {"metrics": ("accuracy", "f1_binary"), "positive": "paraphrase"},
    "ranking": {"metrics": ("accuracy", "mean_reciprocal_rank")},
}


def register(
    vocabulary: Vocabulary,
    objective: SeqioObjective,
    *,
    packages: Sequence[str] | None = None,
    rate: str = "examples_proportional",
    rate_settings: Mapping[str, Any] | None = None,
    leave_out: Sequence[str] = (),
    share: float = 1.0,
    labels: Sequence[str] = (),
) -> None:
    """Add the tasks that the objective reads, with the splits "train" and "validation".

    For text to text these are all nine, `pyglue_topic` and so on, and their mixture `pyglue`; for
    an objective of labelled text, the tasks of its kind. Each has a twin, `pyglue_topic_test`,
    whose validation split is the test rows. Any other objective gets `pyglue_text`, the
    documentation that the training rows are made from.

    Args:
        vocabulary: the vocabulary of the tokens.
        objective: the objective of the config.
        packages: see data/pydocs.py.
        rate, rate_settings: rates of the mixture, see t5x_like.preprocessing.mixtures; by default
            proportional to the rows with a limit of 8,000, so that `ranking`, which has four texts
            per row, does not outweigh the others.
        leave_out: tasks to leave out of the mixture, such as ("pyglue_topic",).
        share: the share of data to train on: the first documents of `pyglue_text`, or equally
            spaced training rows of the other tasks.
        labels: ignored; a run passes its label names, which are always the tasks'.

    Raises:
        ValueError: an unknown rate, task or package, a share out of range, or rows without a task.
    """
    del labels
    _check_share(share)
    if objective.name not in (*TEXT_TO_TEXT, *_OF_LABELS):
        source = _documents(packages, share)
        sources.add_document_task(
            "pyglue_text", source=source, vocabulary=vocabulary, objective=objective
        )
        return
    names = fitting(objective.name)
    for name in names:
        for ending, held_out in (("", "validation"), ("_test", "test")):
            sources.add_task(
                f"pyglue_{name}{ending}",
                source=_source(name, objective.name, held_out, _made.folder(packages), share),
                vocabulary=vocabulary,
                preprocessors=objective.cacheable,
                features=objective.features,
            )
    if objective.name in TEXT_TO_TEXT:
        limit = {"limit": _made.MOST["train"]} if rate == "examples_proportional" else {}
        made = mixtures.rate(rate, **(limit | dict(rate_settings or {})))
        mixed = mixtures.without([f"pyglue_{name}" for name in names], leave_out)
        mixtures.mixture("pyglue", mixed, rate=made)


def documents(
    split: str, *, packages: Sequence[str] | None = None, share: float = 1.0
) -> tf.data.Dataset:
    """Return the documents of `pyglue_text`, {"text": scalar string}, to train a vocabulary on."""
    return _documents(packages, share).get_dataset(split, shuffle=False)


def labels(
    objective: str, *, task: str, packages: Sequence[str] | None = None, **unused: Any
) -> tuple[str, ...]:
    """Return the class names of a task in order; empty for tasks that are not classification.

    Raises:
        ValueError: the objective does not read such a task.
    """
    del unused
    if objective not in _OF_LABELS:
        return ()
    name = _named(task, objective)
    if TASKS[name].kind != "classification":
        return ()
    return tuple(sorted({row["label"] for row in _made.rows(name, "train", packages=packages)}))


def measure(objective: str, *, task: str, **unused: Any) -> dict[str, Any]:
    """Return the kind and settings of a task's measure; for `pyglue_text` it is the loss.

    Raises:
        ValueError: the objective does not read such a task, or it is the mixture.
    """
    del unused
    if task == "pyglue":
        raise ValueError(
            "evaluate.tasks: the tasks of the mixture 'pyglue' have measures of their own; name "
            f"those to evaluate on, for all: {tuple(f'pyglue_{name}' for name in TASKS)}"
        )
    if objective not in (*TEXT_TO_TEXT, *_OF_LABELS):
        return {"kind": "loss"}
    name = _named(task, objective)
    if objective in TEXT_TO_TEXT:
        return {"kind": "generation"} | _texts.MEASURES[name]
    if TASKS[name].kind == "question_answering":
        return {"kind": "squad"}
    return {"kind": "predictions"} | _HEADS.get(name, {})


def fitting(objective: str) -> list[str]:
    """Return the tasks that an objective reads."""
    if objective in TEXT_TO_TEXT:
        return list(TASKS)
    only = _PAIRS if objective in ("pair_classification", "gpt_similarity") else TASKS
    return [name for name in only if objective in LABELLED_OBJECTIVES.get(TASKS[name].kind, ())]


def _named(task: str, objective: str) -> str:
    """Return the name in `TASKS` of a registered task, which must fit the objective."""
    names = fitting(objective)
    known = {f"pyglue_{name}{ending}": name for name in names for ending in ("", "_test")}
    return choose(f"data.task for data.objective={objective!r}", task, known)


def _source(task: str, objective: str, held_out: str, made: Path, share: float) -> ColumnSource:
    """Return the rows of "train" and, as "validation", of `held_out`; read when they are needed."""
    form = _made.TEXT if objective in TEXT_TO_TEXT else _made.LABELLED
    files = {
        split: str(made / form / f"{task}-{own}.jsonl")
        for split, own in (("train", "train"), ("validation", held_out))
    }
    read = _text_columns if objective in TEXT_TO_TEXT else _labelled_columns

    def of_split(split: str) -> TensorColumns:
        found = read(objective, files["train"], files["validation"])[split]
        if split != "train" or share == 1:
            return found
        every = int(next(iter(found.values())).shape[0])
        rows = max(1, round(share * every))
        # Equally spaced, since the first rows of a task do not have balanced labels.
        chosen = [row * every // rows for row in range(rows)]
        return {name: tf.gather(column, chosen) for name, column in found.items()}

    return ColumnSource(of_split, splits=sources.SPLITS)


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"data.settings.share={share} must be above 0, and at most 1")


# A run registers its tasks several times; read the rows of each only once.
@functools.lru_cache(maxsize=2 * len(TASKS))
def _labelled_columns(objective: str, train: str, validation: str) -> dict[str, Any]:
    found = _labelled.read(objective, train=train, validation=validation)
    return {split: columns(found.numbered(split)) for split in sources.SPLITS}


@functools.lru_cache(maxsize=2 * len(TASKS))
def _text_columns(objective: str, train: str, validation: str) -> dict[str, Any]:
    del objective
    files = zip(sources.SPLITS, (train, validation), strict=True)
    return {split: columns(_made.read(Path(path))) for split, path in files}


def _documents(packages: Sequence[str] | None, share: float) -> sources.FileSource:
    _check_share(share)
    made = _made.folder(packages)
    sizes = json.loads((made / _made.SIZES).read_text())
    numbers = {split: sizes[f"documents-{split}"] for split in sources.SPLITS}
    numbers["train"] = max(1, round(share * numbers["train"]))

    def read(path: tf.Tensor) -> tf.data.Dataset:
        is_train = tf.strings.regex_full_match(path, ".*train")
        number = tf.where(is_train, numbers["train"], numbers["validation"])
        return tf.data.TFRecordDataset(path).take(tf.cast(number, tf.int64))

    return sources.FileSource(
        list_units=lambda split: [str(made / f"documents-{split}")],
        read=read,
        examples=lambda texts, split: texts.map(lambda text: {"text": text}),
        count=numbers.get,
    )
