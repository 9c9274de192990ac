"""The toolset TS, from a query to texts: calculator, translator, retrieval of known facts.

The calculator evaluates arithmetic expressions, and never runs code from the text.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from t5x_like import reading

_LONGEST = 200  # characters of an expression
_LARGEST = 10**300  # results must be smaller, so that they fit a float
_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIGNS: dict[type[ast.unaryop], Callable[[float], float]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class _NotArithmeticError(Exception):
    """An expression is not arithmetic, or its value is too large."""


def calculate(text: str) -> list[str]:
    """Return the value of an expression: "135+7721" gives ["7856"].

    The operations are + - * / // % ** and parentheses; ^ is a power, too. The result is [] for any
    other text, a lone number, a division by zero, or a value of 10^300 or more.
    """
    expression = text.strip().removesuffix("=").strip().replace("^", "**")
    if len(expression) > _LONGEST:
        return []
    try:
        tree = ast.parse(expression, mode="eval").body
        if not isinstance(tree, ast.BinOp):
            return []
        return [_shown(_value(tree))]
    except (
        _NotArithmeticError,
        SyntaxError,
        ValueError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ):
        return []


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _checked(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        return _SIGNS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _checked(_power(left, right))
        if type(node.op) in _OPERATIONS:
            return _checked(_OPERATIONS[type(node.op)](left, right))
    raise _NotArithmeticError


def _power(base: float, exponent: float) -> float:
    """Return a power, after checking that it is not too large to compute."""
    if base and abs(exponent) * abs(math.log10(abs(base))) >= math.log10(_LARGEST):
        raise _NotArithmeticError
    power = base**exponent
    if isinstance(power, complex):
        raise _NotArithmeticError
    return power


def _checked(value: float) -> float:
    if not abs(value) < _LARGEST:
        raise _NotArithmeticError
    return value


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"


Tool = Callable[[str], list[str]]

_IN_LANGUAGE = re.compile(r"(?:translate\s+)?(.+?)\s+(?:in|into|to)\s+(\w+)\s*[?.]*", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_MOST = 3  # maximum snippets per query


class Toolset:
    """The toolset TS: from a query to the results of all tools.

    Args:
        tools: the tools, in the order of their results.
    """

    def __init__(self, tools: Sequence[Tool]):
        self._tools = tuple(tools)

    def __call__(self, query: str) -> list[str]:
        """Return the texts of all tools; [] if no tool has a result."""
        return [text for tool in self._tools for text in tool(query)]


class TableTranslator:
    """Translates words and phrases with a table: "hello in French" gives ["bonjour"].

    Args:
        path: JSON Lines with the strings `text`, `language` and `translation`.

    Raises:
        ValueError: the file cannot be read, or a line is invalid.
    """

    def __init__(self, path: str):
        fields = ("text", "language", "translation")
        self._table = {
            (row["text"].casefold(), row["language"].casefold()): row["translation"]
            for row in _rows("translator", path, fields)
        }

    def __call__(self, query: str) -> list[str]:
        """Return the translation; [] if the table does not have the phrase in the language."""
        asked = _IN_LANGUAGE.fullmatch(query.strip())
        if asked is None:
            return []
        phrase = asked[1].strip(" \"'").casefold()
        translation = self._table.get((phrase, asked[2].casefold()))
        return [] if translation is None else [translation]


class Retrieval:
    """Finds snippets in a key-value store whose keys have all their words in the query.

    Snippets are ordered by the number of words in their key, then by their order in the file.

    Args:
        path: JSON Lines with the strings `key`, `text` and optionally `url`, which is appended to
            the text in parentheses.

    Raises:
        ValueError: the file cannot be read, or a line is invalid.
    """

    def __init__(self, path: str):
        self._by_word: dict[str, list[int]] = {}
        self._entries: list[tuple[frozenset[str], str]] = []
        for number, row in enumerate(_rows("retrieval", path, ("key", "text"))):
            words = _words(row["key"])
            url = row.get("url")
            snippet = f"{row['text']} ( {url} )" if url else row["text"]
            self._entries.append((words, snippet))
            for word in words:
                self._by_word.setdefault(word, []).append(number)

    def __call__(self, query: str) -> list[str]:
        """Return the best snippets; [] if no key fits."""
        words = _words(query)
        near = {number for word in words for number in self._by_word.get(word, ())}
        fitting = [number for number in sorted(near) if self._entries[number][0] <= words]
        fitting.sort(key=lambda number: -len(self._entries[number][0]))
        return [self._entries[number][1] for number in fitting[:_MOST]]


def build(*, calculator: bool, translator: str, retrieval: str) -> Toolset | None:
    """Make the toolset from dialog settings; None without any tool.

    Raises:
        ValueError: a file is missing or invalid.
    """
    tools: list[Tool] = [calculate] if calculator else []
    tools += [TableTranslator(translator)] if translator else []
    tools += [Retrieval(retrieval)] if retrieval else []
    return Toolset(tools) if tools else None


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))


def _rows(tool: str, path: str, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"dialog.{tool}={path!r} is not a file: give one of JSON Lines")
    rows = []
    for where, row in reading.json_lines(file):
        for field in fields:
            if not isinstance(row.get(field), str) or not row[field].strip():
                raise ValueError(f"{where}: there is no string {field!r}")
        if not isinstance(row.get("url", ""), str):
            raise ValueError(f"{where}: url={row['url']!r} is not a string")
        rows.append(row)
    return rows
