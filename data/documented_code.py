"""Find documented code in Python files, with signatures and parameters; a worker of pyglue_rows.

    python documented_code.py < paths.json > documented.json

reads a JSON list of paths and writes, for each, the JSON list of its documented classes and
functions in source order (see `documented`). It imports nothing but docstrings.py beside it.
"""

import ast
import gc
import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_docstrings = runpy.run_path(str(Path(__file__).with_name("docstrings.py")))
_prose = _docstrings["prose"]

_LONGEST = 12  # parameters in a signature
# "name : type" of NumPy's style, "name (type): description" of Google's.
_NUMPY = re.compile(r"([*\w, ]+?)\s*(?::\s*(.*))?")
_GOOGLE = re.compile(r"`?([*]{0,2}\w+)`?\s*(?:\(([^)]*)\))?:\s*(.*)")
_ARGS = re.compile(r"\s*(?:Args|Arguments|Parameters):\s*")


def documented(path: str) -> list[dict[str, Any]]:
    """Return the documented classes and functions of a file; none if Python cannot parse it.

    Each has its `name` (Class.method); `signature`, as text; `arguments`, the names; `summary`, the
    prose of the docstring's first paragraph; `rest`, the prose of the other paragraphs, one per
    line; and `parameters`: the name, type and description of each parameter that the docstring
    describes.
    """
    try:
        tree = ast.parse(Path(path).read_bytes())
        return [
            _entry(name, node, text)
            for name, node in _named(tree, "")
            if (text := ast.get_docstring(node))
        ]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _named(node: ast.AST, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the classes and functions of a module, including nested ones, with their names."""
    for field in ("body", "handlers", "orelse", "finalbody"):
        children = getattr(node, field, None)
        for child in children if isinstance(children, list) else ():
            inner = prefix
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{prefix}{child.name}", child
                inner = f"{prefix}{child.name}."
            yield from _named(child, inner)


def _entry(name: str, node: Any, text: str) -> dict[str, Any]:
    first, _, others = text.partition("\n\n")
    arguments = _arguments(node)
    return {
        "name": name,
        "signature": f"{node.name}({', '.join(shown for _, shown in arguments[:_LONGEST])})",
        "arguments": [argument for argument, _ in arguments],
        "summary": _prose(first),
        "rest": _prose(others),
        "parameters": list(_parameters(text.splitlines())),
    }


def _arguments(node: Any) -> list[tuple[str, str]]:
    """Return the name and signature text of each argument, without `self` and `cls`."""
    if isinstance(node, ast.ClassDef):
        inits = [one for one in node.body if getattr(one, "name", "") == "__init__"]
        return _arguments(inits[0]) if inits and hasattr(inits[0], "args") else []
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    without = [None] * (len(plain) - len(given.defaults))
    pairs = list(zip(plain, [*without, *given.defaults], strict=True))
    starred = [(f"*{given.vararg.arg}", None)] if given.vararg else []
    starred_twice = [(f"**{given.kwarg.arg}", None)] if given.kwarg else []
    named = [(one.arg, default) for one, default in pairs if one.arg not in ("self", "cls")]
    only = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    every = [*named, *starred, *((one.arg, default) for one, default in only), *starred_twice]
    return [(name.strip("*"), name + _default(default)) for name, default in every]


def _default(node: ast.expr | None) -> str:
    return "" if node is None else f"={ast.unparse(node)[:20]}"


def _parameters(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the described parameters: name, type and description, each on one line."""
    for number, line in enumerate(lines):
        after = lines[number + 1 :]
        if line.strip() == "Parameters" and after and set(after[0].strip()) == {"-"}:
            yield from _of_numpy(after[1:])
        elif _ARGS.fullmatch(line):
            yield from _of_google(after, indent=_indent(line))


def _of_numpy(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    for head, body in _items(lines, indent=_indent(lines[0]) if lines else 0):
        found = _NUMPY.fullmatch(head)
        if found is None:
            return
        yield found[1], found[2] or "", body


def _of_google(lines: list[str], *, indent: int) -> Iterator[tuple[str, str, str]]:
    within = _indent(lines[0]) if lines else 0
    if within <= indent:
        return
    for head, body in _items(lines, indent=within):
        found = _GOOGLE.fullmatch(head)
        if found is None:
            return
        yield found[1], found[2] or "", f"{found[3]} {body}".strip()


def _items(lines: list[str], *, indent: int) -> Iterator[tuple[str, str]]:
    """Yield lines at an indentation, with the deeper lines below them, up to a section's end."""
    head, body = "", []
    for number, line in enumerate([*lines, ""]):
        text = line.strip()
        underlined = lines[number + 1 : number + 2]
        ends = bool(underlined) and text and set(underlined[0].strip()) == {"-"}
        if text and _indent(line) > indent and head:
            body.append(text)
            continue
        if (not text and number < len(lines)) and head:
            continue
        if head:
            yield head, " ".join(body)
        if not text or ends or _indent(line) < indent:
            return
        head, body = text, []


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


if __name__ == "__main__":
    gc.disable()  # syntax trees have no cycles
    json.dump([documented(path) for path in json.load(sys.stdin)], sys.stdout)
