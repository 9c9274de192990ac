"""Trip counts of the loops of a compiled program."""

import re

from t5x_like.planning.hlo import Computation, Instruction

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_INDEX = re.compile(r"\bindex=(\d+)")
_SAME = ("copy", "bitcast", "convert")


def trips(
    computations: dict[str, Computation], there: Computation, loop: Instruction
) -> int | None:
    """The trip count of a `while`; None where it cannot be derived.

    Where the program has no count, the condition must compare a counter with a constant upper
    bound; the counter starts from a constant, and the body adds a constant to it.

    Args:
        there: the computation that contains the loop.
    """
    if found := _KNOWN.search(loop.attributes):
        return int(found[1])
    condition = computations[loop.called["condition"][0]]
    test = _root(condition)
    if test.opcode != "compare" or "direction=LT" not in test.attributes:
        return None
    counter, limit = (condition[name] for name in test.operands)
    place = _INDEX.search(counter.attributes)
    if counter.opcode != "get-tuple-element" or place is None:
        return None
    body = computations[loop.called["body"][0]]
    start = _entry(there, there[loop.operands[0]], int(place[1]))
    after = _entry(body, _root(body), int(place[1]))
    first = None if start is None else _constant(there, start)
    step = None if after is None else _step(computations, body, after)
    last = _constant(condition, limit)
    if first is None or step is None or last is None or step < 1:
        return None
    return max(0, -(-(last - first) // step))


def _root(computation: Computation) -> Instruction:
    return next(one for one in computation.values() if one.is_root)


def _entry(there: Computation, value: Instruction, index: int) -> Instruction | None:
    """The instruction that computes an entry of a tuple."""
    return there[value.operands[index]] if value.opcode == "tuple" else None


def _constant(there: Computation, value: Instruction) -> int | None:
    while value.opcode in _SAME:
        value = there[value.operands[0]]
    is_number = value.opcode == "constant" and re.fullmatch(r"-?\d+", value.arguments)
    return int(value.arguments) if is_number else None


def _step(
    computations: dict[str, Computation], there: Computation, value: Instruction
) -> int | None:
    """The constant that a body adds to the counter."""
    while value.opcode in _SAME:
        value = there[value.operands[0]]
    if value.opcode == "fusion":
        there = computations[value.called["calls"][0]]
        value = _root(there)
    if value.opcode != "add":
        return None
    found = [_constant(there, there[name]) for name in value.operands]
    return next((number for number in found if number is not None), None)
