"""Recipes: settings that many papers' configs share, so that a file holds only its paper's.

A config file starts from `pretraining` or `fine_tuning` and then sets the values of its paper.
Numbers derived from `train.steps` or `optimizer.learning_rate` are one-way references: they follow
when the other setting changes, also from the shell, and keep a value that they are given directly.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
from ml_collections.config_dict import FieldReference, placeholder

from t5x_like import systems
from t5x_like.config import defaults

# A network that learns in minutes on 2 CPU cores; settings that a system lacks are skipped.
_DEMO_MODEL = {
    "vocab_size": 4096,
    "layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 128,
    "d_ff": 512,
    "heads": 4,
    "head_width": 32,
    "d_kv": 32,
    "dropout": 0.0,  # the run reads no text twice, so it cannot overfit
    "dtype": "float32",
}


def check_size(file: str, size: str, allowed: Iterable[str], *, kind: str = "size") -> None:
    """Raise an error if a config file does not have a size (or other name after the colon).

    Raises:
        ValueError: the size is not allowed; the message lists the allowed sizes in their order.
    """
    allowed = list(allowed)
    if size not in allowed:
        raise ValueError(f"configs/{file}.py has no {kind} {size!r}: choose {', '.join(allowed)}")


def pretraining(
    system: str,
    size: str,
    *,
    sizes: Mapping[str, Mapping[str, Any]] | None = None,
    others: Iterable[str] = ("demo",),
) -> ml_collections.ConfigDict:
    """Return a config that pretrains one size of a system on C4.

    Args:
        system: a name in t5x_like.systems, which is also the config file's.
        size: a key of `sizes`.
        sizes: settings of the model by size; None: the system's published sizes.
        others: names that the file accepts besides sizes, for the error message.

    Raises:
        ValueError: the size is unknown; the message lists all.
    """
    sizes = systems.find(system).sizes if sizes is None else sizes
    check_size(system, size, (*others, *(name for name in sizes if name not in others)))
    config = defaults()
    config.system = system
    config.workdir = f"runs/{system}_{size}"
    config.model = dict(sizes[size])
    config.data.module = "data/c4.py"
    config.data.task = "c4_en"
    config.checkpoint.every = 5_000
    config.evaluate.every = 5_000
    return config


def language_modeling(config: ml_collections.ConfigDict, *, length: int) -> None:
    """Set the objective of a decoder-only model: the next token in rows of running text."""
    config.loss = {"z_loss": 0.0, "label_smoothing": 0.0}
    config.data.objective = "language_modeling"
    config.data.converter = "decoder"
    config.data.lengths = {"targets": length}


def masked_language_modeling(
    config: ml_collections.ConfigDict, objective: str, *, length: int
) -> None:
    """Set a masked objective of an encoder that reads `length` tokens per row."""
    config.data.objective = objective
    config.data.converter = "encoder"
    config.data.lengths = {"inputs": length}


def mixture(
    config: ml_collections.ConfigDict,
    corpora: Mapping[str, tuple[float, float | None]],
    *,
    folders: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Read a mixture of files (data/mixture_files.py) at corpora/NAME/*.jsonl.gz.

    Each corpus is also a task of its own, and evaluated separately.

    Args:
        config: the config to change.
        corpora: {name: (weight in training, tokens of the whole corpus)}; the run counts its epochs
            from the tokens, and does not if they are None.
        folders: {name: folders within corpora/} of a corpus that has several.
    """
    files: dict[str, Any] = {name: f"corpora/{name}/*.jsonl.gz" for name in corpora}
    for name, several in (folders or {}).items():
        files[name] = tuple(f"corpora/{folder}/*.jsonl.gz" for folder in several)
    config.data.module = "data/mixture_files.py"
    config.data.task = "mixture_files"
    config.data.settings = {
        "corpora": {
            name: {
                "files": files[name],
                "weight": float(weight),
                "text": "text",
                "tokens": None if tokens is None else round(tokens),
            }
            for name, (weight, tokens) in corpora.items()
        },
        "held_out": 0.001,
    }
    config.evaluate.tasks = tuple(f"mixture_files_{name}" for name in corpora)


def text_pairs(config: ml_collections.ConfigDict) -> None:
    """Read pairs of texts from the user's files (data/text_files.py)."""
    config.data.module = "data/text_files.py"
    config.data.task = "text_files"
    config.data.settings = {"files": "", "inputs": "", "targets": ""}


def fine_tuning(workdir: str, **model: Any) -> ml_collections.ConfigDict:
    """Return a config that starts from the folder `initialize`, with its system and sizes.

    Args:
        workdir: the folder of the run.
        model: settings of the model that differ from the folder's.
    """
    config = defaults()
    config.system = ""
    config.workdir = workdir
    config.model = {**model, "dropout": placeholder(float), "dtype": placeholder(str)}
    return config


def labelled_text(
    config: ml_collections.ConfigDict,
    objective: str,
    *,
    converter: str,
    fields: Mapping[str, object],
) -> None:
    """Read labelled text from the user's files (data/labelled_files.py), rows of 128 tokens."""
    config.data.module = "data/labelled_files.py"
    config.data.task = "labelled_files"
    config.data.settings = {"train": "", "validation": "", "held_out": 0.1, **fields}
    config.data.objective = objective
    config.data.converter = converter
    config.data.lengths = {"inputs": 128}
    config.data.batch_size = 32
    config.train.steps = 3000
    config.evaluate.every = 500
    config.evaluate.batches = 0
    config.checkpoint.keep = 1


def steps(config: ml_collections.ConfigDict) -> FieldReference:
    """Return a reference to `train.steps`, for numbers derived from it: `steps(config) // 10`."""
    return config.train.get_oneway_ref("steps")


def following(
    reference: FieldReference, function: Callable[[Any], Any], *, default: Any
) -> FieldReference:
    """Return a reference to a function of another setting, for more than arithmetic.

    Args:
        reference: the other setting, from `get_oneway_ref`.
        function: maps its value to the value of the reference.
        default: any value of the type that the function returns.
    """
    return FieldReference(default, op=_Follow(lambda _, value: function(value), (reference,)))


def warmup(config: ml_collections.ConfigDict, number: int) -> FieldReference:
    """Return a warmup of `number` steps, or of a quarter of the run if that is shorter.

    It is for demos, which are often tried with few steps; the warmups of papers stay as they are.
    """
    return following(steps(config), lambda total: min(number, total // 4), default=number)


class _Follow(NamedTuple):
    """An operation of a FieldReference, on its own value and the values of `args`."""

    fn: Callable[..., Any]
    args: tuple[FieldReference, ...]


def phases(config: ml_collections.ConfigDict, **parts: Mapping[str, Any]) -> None:
    """Set the phases of a run, and `train.steps` to the sum of their `steps`.

    If `train.steps` is changed later, each phase keeps its share of the steps.
    """
    config.train.steps = total = sum(part["steps"] for part in parts.values())
    config.train.phases = tuple(parts)
    done, begins, sections = 0, 0, {}
    for name, part in parts.items():
        done += part["steps"]
        ends = steps(config) * done // total
        sections[name] = {**part, "steps": ends - begins}
        begins = ends
    config.phases = ml_collections.ConfigDict(sections)


def rsqrt() -> dict[str, Any]:
    """Return T5's schedule: 0.01 for 10,000 steps, then 1 / sqrt(step)."""
    return {"schedule": "rsqrt", "learning_rate": 1.0, "warmup_steps": 10_000}


def linear(
    config: ml_collections.ConfigDict, learning_rate: float, *, warmup_steps: Any
) -> dict[str, Any]:
    """Return a linear warmup followed by a linear decay to 0 at the end of the run."""
    return {
        "schedule": "linear",
        "learning_rate": learning_rate,
        "warmup_steps": warmup_steps,
        "decay_steps": steps(config),
    }


def cosine(
    config: ml_collections.ConfigDict, learning_rate: float, *, warmup_steps: Any
) -> dict[str, Any]:
    """Return a linear warmup followed by a cosine decay to a tenth at the end of the run."""
    rate = FieldReference(learning_rate)
    return {
        "schedule": "cosine",
        "learning_rate": rate,
        "end_learning_rate": rate / 10,
        "warmup_steps": warmup_steps,
        "decay_steps": steps(config),
    }


def demo(
    config: ml_collections.ConfigDict, *, vocabulary: str, **model: Any
) -> ml_collections.ConfigDict:
    """Turn a pretraining config into a demo that learns from Python docstrings in minutes.

    The network gets the sizes that all demos have (`_DEMO_MODEL`), whatever the config had.

    Args:
        config: changed in place, and returned.
        vocabulary: the file or folder that `python -m t5x_like.vocabulary` writes.
        model: settings of the model, which override the sizes of all demos.
    """
    config.workdir = f"runs/{config.system}_demo"
    config.model.update({k: v for k, v in _DEMO_MODEL.items() if k in config.model} | model)
    config.data.module = "data/pydocs.py"
    config.data.task = "pydocs"
    config.data.settings = ml_collections.ConfigDict()
    config.data.vocabulary = vocabulary
    config.train.log_every = 20
    config.checkpoint.every = 500
    config.evaluate.every = 200
    config.evaluate.tasks = ()
    return config
