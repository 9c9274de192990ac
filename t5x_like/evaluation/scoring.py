"""Evaluation of what a model finds likely or writes, in place of the loss: a config's `score`.

| kind | rows have | paper |
|---|---|---|
| documents | text | Radford et al. 2019, section 3.1 |
| last_word | text | LAMBADA: the same, section 3.3 |
| choice | inputs with a blank, choices, targets | Children's Book Test: section 3.2 |
| in_context | inputs, targets, by likelihood choices | Brown et al. 2020, section 2 |
| translation | inputs, targets | Vaswani et al. 2017, section 6.1 |

The settings of a kind are the fields of its class in t5x_like/evaluation/. Rows are those of
`data.task` (or `evaluate.tasks`) as `data.module` has them, before any objective: of its split
"validation", and for examples in a prompt of "train". With `cleaned` they are as training has them,
say without indentation (preprocessing/cleaning.py).
"""

import functools
import inspect
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import ml_collections

from t5x_like.evaluation.cloze import Choice, LastWord
from t5x_like.evaluation.documents import Documents
from t5x_like.evaluation.in_context import InContext
from t5x_like.evaluation.interface import Row
from t5x_like.evaluation.translation import Translation
from t5x_like.experiment import data_side, text_data
from t5x_like.inference import text_model
from t5x_like.names import choose
from t5x_like.pretrained import Pretrained

Kind = Documents | LastWord | Choice | InContext | Translation

KINDS: dict[str, type[Kind]] = {
    "documents": Documents,
    "last_word": LastWord,
    "choice": Choice,
    "in_context": InContext,
    "translation": Translation,
}
_OWN = ("kind", "pool", "predictions", "cleaned")
_POOL = 100_000


def make_kind(settings: Mapping[str, Any]) -> Kind:
    """The measurement that a config's `score` asks for.

    Raises:
        ValueError: no kind has this name, or it has no such setting, or a bad value.
    """
    name = settings["kind"]
    kind = choose("score.kind", name, KINDS)
    known = inspect.signature(kind).parameters
    for setting in settings:
        choose(f"setting of score.kind={name!r}", setting, {**known, **dict.fromkeys(_OWN)})
    return kind(**{key: value for key, value in settings.items() if key not in _OWN})


def measure(
    pretrained: Pretrained, settings: ml_collections.ConfigDict
) -> dict[str, dict[str, float]]:
    """Registers the tasks of a config, and measures each as `score` says; call it on all processes.

    `score.predictions` names a JSON Lines file for what was made of each row.

    Raises:
        ValueError: a setting, a module or a task that does not exist, or rows that do not fit.
    """
    score = settings.score.to_dict()
    kind = make_kind(score)
    writes = isinstance(kind, Translation) or getattr(kind, "by", "") == "generation"
    if jax.process_count() > 1 and writes:
        raise ValueError("what a model writes is measured by one process alone")
    text = text_data.build(settings)
    model = text_model.build(pretrained, settings, text)
    text.register()
    results, predictions = {}, []
    for task in tuple(settings.evaluate.tasks) or (settings.data.task,):
        read = functools.partial(text_rows, task, cleaned=score.get("cleaned", False))
        rows = list(itertools.islice(read(split="validation"), limit(settings)))
        if not rows:
            raise ValueError(f"data.task={task!r} has no row to be scored")
        if isinstance(kind, InContext):
            pool = read(split="train") if kind.shots else iter(())
            examples = list(itertools.islice(pool, score.get("pool", _POOL)))
            results[task], said = kind.measure(model, rows, examples)
        else:
            results[task], said = kind.measure(model, rows)
        predictions += [{"task": task, **one} for one in said]
    if score.get("predictions") and jax.process_index() == 0:
        path = pathlib.Path(score["predictions"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(one) + "\n" for one in predictions))
    return results


def limit(settings: ml_collections.ConfigDict) -> int | None:
    """Rows of a task that `evaluate.batches` asks for; None for all."""
    return settings.evaluate.batches * settings.data.batch_size or None


def text_rows(task: str, *, split: str, cleaned: bool = False) -> Iterator[Row]:
    """The rows of a registered task's source, with strings for bytes and lists for arrays.

    Args:
        cleaned: see `source_rows`.
    """
    from t5x_like.preprocessing.pipeline import source_rows

    for row in source_rows(task, split=split, cleaned=cleaned):
        yield {name: data_side.plain(value) for name, value in row.items()}
