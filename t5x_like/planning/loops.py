"""Trip counts of the loops of a compiled program."""

import re
from typing import NamedTuple

from t5x_like.planning.hlo import Computation, Instruction

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_INDEX = re.compile(r"\bindex=(\d+)")
_SAME = ("copy", "bitcast", "convert")


class Loop(NamedTuple):
    """A `while` of a compiled program.

    Attributes:
        instruction: the `while` itself.
        trips: how often it runs, at most if it can end `early`; None if this cannot be derived.
        early: whether its condition tests more than its counter.
    """

    instruction: Instruction
    trips: int | None
    early: bool = False

    def changed(self, computations: dict[str, Computation]) -> int:
        """Return the bytes that a trip changes for the next trip, such as a decoder's cache."""
        root = _root(computations[self.instruction.called["body"][0]])
        body = [computations[self.instruction.called["body"][0]][name] for name in root.operands]
        total = 0
        for number, (entry, array) in enumerate(zip(body, self.instruction.arrays, strict=True)):
            place = _INDEX.search(entry.attributes)
            kept = entry.opcode == "get-tuple-element" and place and int(place[1]) == number
            total += 0 if kept else array.bytes
        return total


def of(computations: dict[str, Computation], there: Computation, loop: Instruction) -> Loop:
    """Derive the trip count of a `while`.

    If the program does not state the count, the condition must compare a counter, plus a constant,
    with a constant upper bound; the counter must start from a constant, and the body add a constant
    to it. The condition may have further tests.

    Args:
        there: the computation that contains the loop.
    """
    if found := _KNOWN.search(loop.attributes):
        return Loop(loop, int(found[1]))
    condition = computations[loop.called["condition"][0]]
    root = _root(condition)
    early = root.opcode == "and"
    tests = [condition[name] for name in root.operands] if early else [root]
    found_trips = [_trips(computations, there, loop, test) for test in tests]
    known = [number for number in found_trips if number is not None]
    return Loop(loop, min(known), early) if known else Loop(loop, None)


def _trips(
    computations: dict[str, Computation], there: Computation, loop: Instruction, test: Instruction
) -> int | None:
    """Return how often a loop runs until a test of its condition fails."""
    if test.opcode != "compare" or "direction=LT" not in test.attributes:
        return None
    condition = computations[loop.called["condition"][0]]
    counter, limit = (condition[name] for name in test.operands)
    before = 0
    if counter.opcode == "add":
        terms = [condition[name] for name in counter.operands]
        numbers = [_constant(condition, one) for one in terms]
        if (numbers[0] is None) == (numbers[1] is None):
            return None
        counter = terms[0] if numbers[0] is None else terms[1]
        before = next(number for number in numbers if number is not None)
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
    return max(0, -(-(last - before - first) // step))


def _root(computation: Computation) -> Instruction:
    return next(one for one in computation.values() if one.is_root)


def _entry(there: Computation, value: Instruction, index: int) -> Instruction | None:
    """Return the instruction that computes an entry of a tuple."""
    return there[value.operands[index]] if value.opcode == "tuple" else None


def _constant(there: Computation, value: Instruction) -> int | None:
    while value.opcode in _SAME:
        value = there[value.operands[0]]
    is_number = value.opcode == "constant" and re.fullmatch(r"-?\d+", value.arguments)
    return int(value.arguments) if is_number else None


def _step(
    computations: dict[str, Computation], there: Computation, value: Instruction
) -> int | None:
    """Return the constant that a body adds to the counter."""
    while value.opcode in _SAME:
        value = there[value.operands[0]]
    if value.opcode == "fusion":
        there = computations[value.called["calls"][0]]
        value = _root(there)
    if value.opcode != "add":
        return None
    found = [_constant(there, there[name]) for name in value.operands]
    return next((number for number in found if number is not None), None)
