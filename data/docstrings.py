"""Find the documentation strings in Python files; a worker process of pydocs.py.

    python docstrings.py < paths.json > docstrings.json
    python docstrings.py --prose < paths.json > prose.json

reads a JSON list of paths and writes, for each, the JSON list of its documentation strings in
source order; with --prose only their sentences (see `prose`), one paragraph per line. It imports
nothing of this repository, so that a worker starts in milliseconds.
"""

import ast
import gc
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

MIN_PARAGRAPH = 40  # characters
_MIN_WORDS = 4  # of a sentence
# A line that begins the description of a parameter: "name (type): The description".
_NAMED = re.compile(r"[*\-\d.`]*\s*[\w`*]*(?: \([^)]*\))?:\s+(?=[A-Z])")
_ROLE = re.compile(r":[a-z:]+:`")  # of reStructuredText, as in :class:`Name`
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_WORD = re.compile(r"[A-Za-z]\w*(?:[-'.]\w+)*|\d+(?:\.\d+)?")


def docstrings(path: str) -> list[str]:
    """Return the docstrings of a file's module, classes and functions, cleaned by inspect.cleandoc.

    A file that Python cannot read or parse (another encoding, null bytes, a template, code for
    another version, too deep nesting) has no docstrings.
    """
    try:
        tree = ast.parse(Path(path).read_bytes())
        return [text for node in _documented(tree) if (text := ast.get_docstring(node))]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _documented(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
    """Yield documented nodes; walks only statements, which are few and contain all definitions."""
    if isinstance(node, DOCUMENTED):
        yield node  # type: ignore[misc]
    for field in ("body", "handlers", "orelse", "finalbody"):
        children = getattr(node, field, None)
        for child in children if isinstance(children, list) else ():
            yield from _documented(child)


def prose(docstring: str) -> str:
    """Return the sentences of a docstring, a paragraph per line, without layout, code and formulas.

    A paragraph is a run of consecutive whole sentences in a block of text, which may be the
    description of a parameter, with `MIN_PARAGRAPH` characters or more. A sentence begins with a
    capital, ends with a full stop and contains only words, names and numbers.
    """
    paragraphs = []
    for block in _blocks(docstring):
        text = _ROLE.sub("", block).translate({ord("`"): None, ord("*"): None})
        run: list[str] = []
        for sentence in [*_SENTENCE_END.split(text), ""]:
            if _is_prose(sentence):
                run.append(sentence)
            else:
                paragraphs.append(" ".join(run))
                run = []
    return "\n".join(text for text in paragraphs if len(text) >= MIN_PARAGRAPH)


def _blocks(docstring: str) -> Iterator[str]:
    """Split at empty lines, at changes of indentation and before each "name: Description"."""
    block: list[str] = []
    named, indent = False, 0
    for line in [*docstring.splitlines(), ""]:
        text = line.strip()
        before, indent = indent, len(line) - len(line.lstrip())
        hanging = named and len(block) == 1 and indent > before
        name = _NAMED.match(text)
        if block and (not text or (indent != before and not hanging) or name):
            yield " ".join(block)
            block = []
        if text:
            named = bool(name) if not block else named
            block.append(text[name.end() :] if name else text)


def _is_prose(sentence: str) -> bool:
    words = [word.strip("(),;:\"'") for word in sentence.removesuffix(".").split(" ")]
    return (
        sentence[:1].isupper()
        and sentence.endswith(".")
        and len(words) >= _MIN_WORDS
        and all(map(_WORD.fullmatch, words))
    )


if __name__ == "__main__":
    gc.disable()  # syntax trees have no cycles: looking for them costs a sixth of the time
    found = [docstrings(path) for path in json.load(sys.stdin)]
    if "--prose" in sys.argv:
        found = [[text for raw in texts if (text := prose(raw))] for texts in found]
    json.dump(found, sys.stdout)
