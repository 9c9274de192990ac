"""The graph of functions and its questions: what is found, and what stands in the graph alone."""

import json
import runpy
from pathlib import Path

import pytest

from data.generators import function_graph
from t5x_like.batches import knowledge_graph

CODE = '''
from typing import Optional, Union
import typing


def is_builtin(name) -> bool:
    """Check whether a module is compiled in.

    More.
    """
    if not name:
        raise TypeError("empty")
    raise ValueError


def names(self) -> "typing.List[int]":
    """List the names."""


def maybe() -> Optional[int]:
    """Return a number, or not."""


def either() -> "int | None":
    """Return a number, or not."""
    raise


def quiet() -> None:
    "Do nothing."
    raise errors.HTTPError(3)


def bare(x):
    return x
'''


def facts_of(tmp_path, code):
    script = runpy.run_path(str(Path(function_graph.__file__).with_name("function_facts.py")))
    (tmp_path / "code.py").write_text(code)
    return script["facts"](str(tmp_path / "code.py"))


def test_what_functions_return_and_raise(tmp_path):
    found = {one["name"]: (one["returns"], one["raises"]) for one in facts_of(tmp_path, CODE)}
    assert found == {
        "is_builtin": ("bool", "ValueError"),
        "names": ("List", ""),
        "maybe": ("", ""),
        "either": ("", ""),
        "quiet": ("None", "HTTPError"),
    }
    assert facts_of(tmp_path, "def broken(") == []


def fact(name, returns="", raises="", summary="Do it now and here."):
    return {"name": name, "summary": summary, "returns": returns, "raises": raises}


def test_namesakes_that_disagree_have_no_fact():
    known = function_graph.unambiguous(
        [fact("f", "int", "OSError"), fact("f", "str", "OSError"), fact("_g", "int"), fact("a")]
    )
    assert [(one["name"], one["returns"], one["raises"]) for one in known] == [
        ("a", "", ""),
        ("f", "", "OSError"),
    ]
    assert function_graph.triples(known) == [("f", "raises", "OSError")]


def test_questions_are_balanced_and_do_not_contain_their_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(function_graph, "RAREST", 5)
    monkeypatch.setattr(function_graph, "MOST", 20)
    facts = [fact(f"f{n}", "int" if n % 4 else "str", "OSError" * (n < 3)) for n in range(60)]
    facts += [fact("as_int", "int"), fact("h", "int", summary="Return an int, at all times.")]
    rows = function_graph.questions(facts)
    numbers = {label: sum(row["label"] == label for row in rows) for label in ("int", "str")}
    assert numbers == {"int": 20, "str": 15}
    assert {row["label"] for row in rows} == {"int", "str"}  # three errors are too few
    assert not {"as_int", "h"} & {row["name"] for row in rows}
    sizes = function_graph.write(tmp_path, facts)
    assert sizes["graph.tsv"] == len(knowledge_graph.read(tmp_path / "graph.tsv")) == 65
    splits = {
        name: [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("train.jsonl", "validation.jsonl")
    }
    assert sum(map(len, splits.values())) == 35
    asked = [{row["text_a"] for row in own} for own in splits.values()]
    assert not asked[0] & asked[1]
    assert splits["train.jsonl"][0].keys() == {"text_a", "text_b", "label"}


def test_packages_without_annotations_are_refused(tmp_path, capsys):
    with pytest.raises(ValueError, match="--packages: their functions have too few"):
        function_graph.write(tmp_path, [fact("f")])
    with pytest.raises(SystemExit) as error:
        function_graph.main([f"--output={tmp_path}", "--packages", "no_such_package"])
    assert error.value.code == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "'no_such_package' is not installed" in line
