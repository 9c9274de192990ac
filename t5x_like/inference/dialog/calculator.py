"""A calculator for arithmetic expressions, which never runs code from the text."""

import ast
import math
import operator
from collections.abc import Callable

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
    found = base**exponent
    if isinstance(found, complex):
        raise _NotArithmeticError
    return found


def _checked(value: float) -> float:
    if not abs(value) < _LARGEST:
        raise _NotArithmeticError
    return value


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"
