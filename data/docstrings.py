"""Finds the documentation strings in Python files; a worker process of pydocs.py.

    python docstrings.py < paths.json > docstrings.json

reads a JSON list of paths and writes, for each, the JSON list of its documentation strings in
source order. It stands alone so that a worker starts in milliseconds, without TensorFlow.
"""

import ast
import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(path: str) -> list[str]:
    """Returns the docstrings of a file's module, classes and functions, as inspect.cleandoc does.

    A file that Python cannot read or parse (another encoding, null bytes, a template, code of
    another version, too deep a nesting) has none.
    """
    try:
        tree = ast.parse(Path(path).read_bytes())
        return [text for node in _documented(tree) if (text := ast.get_docstring(node))]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _documented(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
    """Walks the statements alone: they hold every definition, and few of the nodes."""
    if isinstance(node, DOCUMENTED):
        yield node  # type: ignore[misc]
    for field in ("body", "handlers", "orelse", "finalbody"):
        children = getattr(node, field, None)
        for child in children if isinstance(children, list) else ():
            yield from _documented(child)


if __name__ == "__main__":
    gc.disable()  # syntax trees have no cycles: looking for them costs a sixth of the time
    json.dump([docstrings(path) for path in json.load(sys.stdin)], sys.stdout)
