"""The text form of PyGLUE: labelled rows as inputs with a prefix and targets (T5, section 2.4).

`WRITE` maps the name of a task to the function from a row to its rows of text, with `inputs`,
`targets` and, for `ranking`, `group`, the query.
"""

from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]


def _write_class(row: Row, *, prefix: str, names: Sequence[str]) -> list[Row]:
    texts = [f"{name}: {row[f'text_{key}']}" for name, key in zip(names, "ab", strict=False)]
    target = str(row["value"] if "value" in row else row["label"])
    return [{"inputs": " ".join([prefix, *texts]), "targets": target}]


def _class(prefix: str, *names: str) -> Callable[[Row], list[Row]]:
    return lambda row: _write_class(row, prefix=prefix, names=names)


def _write_span(row: Row) -> list[Row]:
    inputs = f"span question: {row['question']} context: {row['context']}"
    return [{"inputs": inputs, "targets": row["answers"][0]["text"]}]


def _write_choices(row: Row) -> list[Row]:
    choices = " ".join(f"choice{n}: {text}" for n, text in enumerate(row["choices"], start=1))
    inputs = f"continuation sentence: {row['text_a']} {choices}"
    return [{"inputs": inputs, "targets": f"choice{row['answer'] + 1}"}]


def _write_ranking(row: Row) -> list[Row]:
    """Write a pair for each document, as in monoT5 (Nogueira et al. 2020)."""
    return [
        {
            "inputs": f"ranking query: {row['text_a']} document: {text}",
            "targets": "true" if number == row["answer"] else "false",
            "group": row["text_a"],
        }
        for number, text in enumerate(row["choices"])
    ]


def _write_summary(row: Row) -> list[Row]:
    return [{"inputs": f"summarize: {row['inputs']}", "targets": row["targets"]}]


_PAIR = ("sentence1", "sentence2")
WRITE: dict[str, Callable[[Row], list[Row]]] = {
    "acceptability": _class("acceptability", "sentence"),
    "topic": _class("topic", "text"),
    "similarity": _class("similarity", *_PAIR),
    "paraphrase": _class("paraphrase", *_PAIR),
    "entailment": _class("entailment", "signature", "sentence"),
    "span": _write_span,
    "continuation": _write_choices,
    "ranking": _write_ranking,
    "summary": _write_summary,
}

# Settings of the measure `generation`.
MEASURES: dict[str, dict[str, Any]] = {
    "acceptability": {"metrics": ("matthews", "accuracy")},
    "topic": {"metrics": ("accuracy",)},
    "similarity": {"metrics": ("pearson", "spearman")},
    "paraphrase": {"metrics": ("accuracy", "f1_binary"), "positive": "paraphrase"},
    "entailment": {"metrics": ("accuracy",)},
    "span": {"metrics": ("exact_match", "f1")},
    "continuation": {"metrics": ("accuracy",)},
    "ranking": {"metrics": ("f1_binary",), "positive": "true"},
    "summary": {"metrics": ("rouge_1", "rouge_2", "rouge_l")},
}
