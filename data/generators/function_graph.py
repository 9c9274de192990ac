"""A knowledge graph of the installed Python functions, and questions that only it can answer.

    python -m data.generators.function_graph --output=runs/k_bert_demo

writes three files:

    graph.tsv                         subject        relation  object
                                      is_builtin     returns   bool
                                      is_builtin     raises    TypeError
    train.jsonl, validation.jsonl     {"text_a": "which type does is_builtin return?",
                                       "text_b": "Check whether a module is compiled in.",
                                       "label": "bool"}

Each triple is about a function with a docstring, in the standard library or the scientific packages
(see pydocs.py): the type in its annotation, or the least nested error that its body raises.
Functions of one name that disagree are left out. A question is about one function, `text_b` is the
first paragraph of its docstring, and neither contains the label, which is a type or an error. Each
label has 60 functions or more, and 400 questions at most. A tenth of the functions is held out for
validation, chosen by name: their return types and errors are only in the graph.
"""

import collections
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from t5x_like.config import one_line_errors
from t5x_like.experiment.command_line import ArgumentParser
from t5x_like.preprocessing import sources

_pydocs = sources.load_module(str(Path(__file__).parents[1] / "pydocs.py"))

QUESTIONS = {
    "returns": "which type does {name} return?",
    "raises": "which error does {name} raise?",
}
HELD_OUT = 0.1
RAREST, MOST = 60, 400  # functions and questions of a label

Facts = Mapping[str, str]  # of a function, as written by function_facts.py


def unambiguous(functions: Iterable[Facts]) -> list[dict[str, str]]:
    """Merge functions of the same name, dropping what they disagree on.

    The summary is the first that is not empty; names with a leading underscore are left out.
    """
    found: dict[str, dict[str, set[str]]] = {}
    summaries: dict[str, str] = {}
    for one in functions:
        values = found.setdefault(one["name"], {relation: set() for relation in QUESTIONS})
        for relation, known in values.items():
            known.add(one[relation])
        summaries[one["name"]] = summaries.get(one["name"]) or one["summary"]
    return [
        {"name": name, "summary": summaries[name]}
        | {relation: min(known) if len(known) == 1 else "" for relation, known in own.items()}
        for name, own in sorted(found.items())
        if not name.startswith("_")
    ]


def triples(functions: Iterable[Facts]) -> list[tuple[str, str, str]]:
    """Return the facts of functions as (subject, relation, object)."""
    return [
        (one["name"], relation, one[relation])
        for one in functions
        for relation in QUESTIONS
        if one[relation]
    ]


def questions(functions: Iterable[Facts]) -> list[dict[str, str]]:
    """Return the questions with their `name`, in a random order that only the names decide.

    Labels of too few functions are left out, as are questions beyond the first `MOST` of a label,
    and questions whose text contains the label.
    """
    rows = [
        {
            "name": one["name"],
            "text_a": question.format(name=one["name"]),
            "text_b": one["summary"],
            "label": one[relation],
        }
        for one in functions
        for relation, question in QUESTIONS.items()
        if one[relation] and one["summary"] and not _stands_in(one[relation], one)
    ]
    numbers = collections.Counter(row["label"] for row in rows)
    rows = [row for row in rows if numbers[row["label"]] >= RAREST]
    order = tf.strings.to_hash_bucket_fast([row["name"] for row in rows], 2**31).numpy()
    taken: collections.Counter[str] = collections.Counter()
    kept = []
    for _, row in sorted(zip(order.tolist(), rows, strict=True), key=lambda pair: pair[0]):
        taken[row["label"]] += 1
        if taken[row["label"]] <= MOST:
            kept.append(row)
    return kept


def _stands_in(label: str, function: Facts) -> bool:
    words = re.findall(r"[a-z0-9]+", f"{function['name']} {function['summary']}".lower())
    return label.lower() in words


def write(output: Path, functions: Iterable[Facts]) -> dict[str, int]:
    """Write the files.

    Returns:
        The number of rows of each file.

    Raises:
        ValueError: the functions give no questions.
    """
    known = unambiguous(functions)
    graph, rows = triples(known), questions(known)
    if not rows:
        raise ValueError("--packages: their functions have too few annotations to ask about")
    names = [row["name"] for row in rows]
    held_out = sources.held_out(tf.constant(names), fraction=HELD_OUT).numpy()
    output.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(one) for one in [("subject", "relation", "object"), *graph]]
    (output / "graph.tsv").write_text("\n".join(lines) + "\n")
    sizes = {"graph.tsv": len(graph)}
    for name, wanted in (("train.jsonl", False), ("validation.jsonl", True)):
        own = [
            {key: value for key, value in row.items() if key != "name"}
            for row, out in zip(rows, held_out, strict=True)
            if out == wanted
        ]
        (output / name).write_text("".join(json.dumps(row) + "\n" for row in own))
        sizes[name] = len(own)
    return sizes


def found_in(packages: Sequence[str] | None) -> list[Any]:
    """Return the facts of all functions of some packages; None for the packages of pydocs.py.

    Raises:
        ValueError: a package is not installed.
    """
    files = _pydocs.source_files(_pydocs.folders(packages))
    found = _pydocs.run_worker("generators/function_facts.py", [str(file) for _, file in files])
    return [one for facts in found for one in facts]


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = ArgumentParser(__doc__, prog="python -m data.generators.function_graph")
    parser.add_argument("--output", required=True, metavar="FOLDER")
    parser.add_argument("--packages", nargs="+", default=None, metavar="NAME")
    given = parser.parse_args(arguments)
    with one_line_errors():
        sizes = write(Path(given.output).expanduser(), found_in(given.packages))
        sys.stdout.write("".join(f"{name}: {number:,} rows\n" for name, number in sizes.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
