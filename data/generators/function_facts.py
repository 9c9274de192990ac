"""Find what functions return and raise in Python files; a worker process of function_graph.py.

    python function_facts.py < paths.json > facts.json

reads a JSON list of paths and writes, for each, the JSON list of the facts of its functions with a
docstring, in source order (see `facts`).
"""

import ast
import gc
import json
import runpy
import sys
from pathlib import Path
from typing import Any

_docstrings = runpy.run_path(str(Path(__file__).parents[1] / "docstrings.py"))
_documented = _docstrings["_documented"]


def facts(path: str) -> list[dict[str, str]]:
    """Return the facts of a file's documented functions; none if Python cannot read or parse it.

    Each has its `name`; `summary`, the docstring's first paragraph; `returns`, the type in its
    annotation without parameters; and `raises`, the first of the least nested errors that its body
    raises; missing values are "".
    """
    try:
        nodes = list(_documented(ast.parse(Path(path).read_bytes())))
        functions = [n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        return [
            {
                "name": node.name,
                "summary": " ".join(text.partition("\n\n")[0].split()),
                "returns": _name(node.returns),
                "raises": _raised(node),
            }
            for node in functions
            if (text := ast.get_docstring(node))
        ]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _name(node: Any) -> str:
    """Return the last name of a type or error: `list` of `typing.list[int]`; "" for several."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return _name(ast.parse(node.value, mode="eval").body)
        except SyntaxError:
            return ""
    if isinstance(node, ast.Constant):
        return "None" if node.value is None else ""
    if isinstance(node, ast.Subscript):
        name = _name(node.value)
        return "" if name in ("Optional", "Union", "Annotated") else name
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _raised(function: ast.AST) -> str:
    for node in ast.walk(function):  # the least nested statements first
        if isinstance(node, ast.Raise):
            name = _name(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
            if name.endswith(("Error", "Exception")):
                return name
    return ""


if __name__ == "__main__":
    gc.disable()  # syntax trees have no cycles
    json.dump([facts(path) for path in json.load(sys.stdin)], sys.stdout)
