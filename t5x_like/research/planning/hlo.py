"""Parse optimized HLO text: instructions, the trip counts of loops, executions in a step."""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2}
_BYTES |= {"u16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8, "c64": 8}
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
_SPACE = re.compile(r"S\((\d)\)")
# Memory spaces in a layout; all others are in HBM.
_ON_CHIP, _ON_HOST = (1, 3, 4), 5  # VMEM, v4's CMEM, SMEM
_NAME = re.compile(r"%([\w.\-]+)")
# A collective that several fusions carry out: one has a custom call that starts it and one a call
# that ends it, and those between, also in the bodies of loops, advance it beside their own work.
STARTS, ENDS = '"AsyncCollectiveStart"', '"AsyncCollectiveDone"'
_CHANNEL = re.compile(r'channel_id=\d+|chain_id="\d+"')
_CALLED = re.compile(r"(calls|to_apply|body|condition|branch_computations)=\{?([^{}]*?)\}?(?=, |$)")


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of a value.

    Attributes:
        dtype: the type in HLO's notation, such as "bf16".
        shape: the shape of one device's shard.
        space: the number of its memory space; 0 is HBM.
    """

    dtype: str
    shape: tuple[int, ...]
    space: int = 0

    @property
    def bytes(self) -> int:
        """The size in bytes, without padding."""
        width = 1 if self.dtype.startswith("f8") else _BYTES.get(self.dtype, 0)
        return int(math.prod(self.shape) * width)

    @property
    def on_host(self) -> bool:
        """Whether it is in the memory of the host."""
        return self.space == _ON_HOST

    @property
    def elsewhere(self) -> bool:
        """Whether it is on the chip or on the host rather than in HBM."""
        return self.on_host or self.space in _ON_CHIP


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a computation.

    Attributes:
        arrays: the arrays of its value; several for a tuple.
        arguments: the text in parentheses: operands, or the value of a constant.
        attributes: the rest of the line.
    """

    name: str
    arrays: tuple[Array, ...]
    opcode: str
    arguments: str
    attributes: str
    is_root: bool

    @functools.cached_property
    def operands(self) -> tuple[str, ...]:
        """The names of its operands, which are instructions of the same computation."""
        return tuple(_NAME.findall(self.arguments))

    @functools.cached_property
    def called(self) -> dict[str, tuple[str, ...]]:
        """{attribute: computations that it calls}."""
        lists = _CALLED.findall(self.attributes)
        return {kind: tuple(_NAME.findall(names)) for kind, names in lists}

    @functools.cached_property
    def channel(self) -> tuple[str, ...]:
        """What the parts of a collective have in common; () for other instructions."""
        return tuple(_CHANNEL.findall(self.attributes))


Computation = dict[str, Instruction]


def read(text: str) -> tuple[dict[str, Computation], str]:
    """Parse `compiled.as_text()` into {name: computation} and the name of the entry computation.

    Raises:
        ValueError: the text has no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in _lines(text):
        if line.endswith("{") and " -> " in line and not line.startswith(" "):
            name = _NAME.search(line)
            assert name is not None, line
            current = computations[name[1]] = {}
            entry = name[1] if line.startswith("ENTRY") else entry
        elif line == "}":
            current = None
        elif current is not None and line.startswith(" ") and " = " in line:
            instruction = _instruction(line.strip())
            current[instruction.name] = instruction
    if not entry:
        raise ValueError("the text of the compiled program has no ENTRY")
    return computations, entry


def _lines(text: str) -> Iterator[str]:
    """Yield the lines; an instruction with the settings of its kernel, which have lines, is one."""
    line = ""
    for part in text.splitlines():
        if line.startswith(" ") and part != "}" and not part.startswith(" "):
            line += part
        else:
            yield line
            line = part
    yield line


def _instruction(line: str) -> Instruction:
    name, _, rest = line.partition(" = ")
    # A tuple's type has spaces, an array's does not.
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opcode, _, _ = rest[end:].strip().partition("(")
    start = rest.index("(", end)
    stop = _closing(rest, start)
    return Instruction(
        name=name.removeprefix("ROOT ").lstrip("%"),
        arrays=arrays(rest[:end]),
        opcode=opcode,
        arguments=rest[start + 1 : stop],
        attributes=rest[stop + 1 :].removeprefix(", "),
        is_root=name.startswith("ROOT "),
    )


def _closing(text: str, start: int) -> int:
    """Return the index of the parenthesis that closes the parenthesis at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise ValueError(f"no closing parenthesis in the compiled program: {text[start : start + 80]}")


def arrays(text: str) -> tuple[Array, ...]:
    """Parse the arrays of a type: two for `(f32[2,3]{1,0}, s32[])`."""
    return tuple(
        Array(
            dtype,
            tuple(map(int, shape.split(","))) if shape else (),
            int(space[1]) if (space := _SPACE.search(layout)) else 0,
        )
        for dtype, shape, layout in _ARRAY.findall(text)
    )


_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_INDEX = re.compile(r"\bindex=(\d+)")
_SAME = ("copy", "bitcast", "convert")


class WhileLoop(NamedTuple):
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
            match = _INDEX.search(entry.attributes)
            is_unchanged = entry.opcode == "get-tuple-element" and match and int(match[1]) == number
            total += 0 if is_unchanged else array.bytes
        return total


def loop_of(
    computations: dict[str, Computation], caller: Computation, loop: Instruction
) -> WhileLoop:
    """Derive the trip count of a `while`.

    If the program does not state the count, the condition must compare a counter, plus a constant,
    with a constant upper bound; the counter must start from a constant, and the body add a constant
    to it. The condition may have further tests.

    Args:
        caller: the computation that contains the loop.
    """
    if match := _KNOWN.search(loop.attributes):
        return WhileLoop(loop, int(match[1]))
    condition = computations[loop.called["condition"][0]]
    root = _root(condition)
    early = root.opcode == "and"
    tests = [condition[name] for name in root.operands] if early else [root]
    trips = [_trips(computations, caller, loop, test) for test in tests]
    known = [number for number in trips if number is not None]
    return WhileLoop(loop, min(known), early) if known else WhileLoop(loop, None)


def _trips(
    computations: dict[str, Computation], caller: Computation, loop: Instruction, test: Instruction
) -> int | None:
    """Return how often a loop runs until a test of its condition fails."""
    if test.opcode != "compare" or "direction=LT" not in test.attributes:
        return None
    condition = computations[loop.called["condition"][0]]
    counter, limit = (condition[name] for name in test.operands)
    before = 0
    if counter.opcode == "add":
        terms = [condition[name] for name in counter.operands]
        numbers = [_constant(condition, term) for term in terms]
        if (numbers[0] is None) == (numbers[1] is None):
            return None
        counter = terms[0] if numbers[0] is None else terms[1]
        before = next(number for number in numbers if number is not None)
    match = _INDEX.search(counter.attributes)
    if counter.opcode != "get-tuple-element" or match is None:
        return None
    body = computations[loop.called["body"][0]]
    start = _entry(caller, caller[loop.operands[0]], int(match[1]))
    after = _entry(body, _root(body), int(match[1]))
    first = None if start is None else _constant(caller, start)
    step = None if after is None else _step(computations, body, after)
    last = _constant(condition, limit)
    if first is None or step is None or last is None or step < 1:
        return None
    return max(0, -(-(last - before - first) // step))


def _root(computation: Computation) -> Instruction:
    return next(instruction for instruction in computation.values() if instruction.is_root)


def _entry(computation: Computation, value: Instruction, index: int) -> Instruction | None:
    """Return the instruction that computes an entry of a tuple."""
    return computation[value.operands[index]] if value.opcode == "tuple" else None


def _constant(computation: Computation, value: Instruction) -> int | None:
    while value.opcode in _SAME:
        value = computation[value.operands[0]]
    is_number = value.opcode == "constant" and re.fullmatch(r"-?\d+", value.arguments)
    return int(value.arguments) if is_number else None


def _step(
    computations: dict[str, Computation], computation: Computation, value: Instruction
) -> int | None:
    """Return the constant that a body adds to the counter."""
    while value.opcode in _SAME:
        value = computation[value.operands[0]]
    if value.opcode == "fusion":
        computation = computations[value.called["calls"][0]]
        value = _root(computation)
    if value.opcode != "add":
        return None
    constants = [_constant(computation, computation[name]) for name in value.operands]
    return next((number for number in constants if number is not None), None)


@dataclasses.dataclass(frozen=True)
class Visit:
    """A computation at one of its call sites.

    Attributes:
        times: how often a step executes it there.
        frame: the id of the computation that executes instruction by instruction: this computation
            or, for the body of a fusion, the computation that contains the fusion.
        is_frame: whether it is that computation itself.
    """

    name: str
    times: int
    frame: int
    is_frame: bool


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
        computations: the computations by name.
        visits: every call that a step executes.
        loops: each `while`. The body counts as often as it runs at most, or once if that is
            unknown.
    """

    computations: dict[str, Computation]
    visits: tuple[Visit, ...]
    loops: tuple[WhileLoop, ...]

    def instructions(self) -> Iterator[tuple[Visit, Instruction]]:
        """Yield all instructions that a step executes, with their call sites."""
        for visit in self.visits:
            for instruction in self.computations[visit.name].values():
                yield visit, instruction

    def operands(self, visit: Visit, instruction: Instruction) -> list[Array]:
        """Return the arrays that an instruction reads."""
        computation = self.computations[visit.name]
        return [array for name in instruction.operands for array in computation[name].arrays]

    @functools.cached_property
    def continued(self) -> frozenset[str]:
        """Names of the collectives in fusions that advance or end what another fusion started."""
        fused = [
            (visit.name, instruction)
            for visit, instruction in self.instructions()
            if not visit.is_frame
        ]
        starting = {name for name, instruction in fused if STARTS in instruction.attributes}
        started = {instruction.channel for name, instruction in fused if name in starting}
        return frozenset(
            instruction.name
            for name, instruction in fused
            if instruction.channel and instruction.channel in started and name not in starting
        )


def parse(text: str) -> Program:
    """Parse `compiled.as_text()`.

    Raises:
        ValueError: the text has no entry computation.
    """
    computations, entry = read(text)
    walk = _Walk(computations)
    walk.visit(entry, times=1, frame=None)
    return Program(computations, tuple(walk.visits), tuple(walk.loops))


class _Walk:
    """Follows the calls from a computation, and counts how often each is executed."""

    def __init__(self, computations: dict[str, Computation]):
        self.visits: list[Visit] = []
        self.loops: list[WhileLoop] = []
        self._computations = computations
        self._frames = itertools.count()

    def visit(self, name: str, *, times: int, frame: int | None) -> None:
        frame_number = next(self._frames) if frame is None else frame
        self.visits.append(Visit(name, times, frame_number, is_frame=frame is None))
        computation = self._computations[name]
        for instruction in computation.values():
            called = instruction.called
            if instruction.opcode == "while":
                loop = loop_of(self._computations, computation, instruction)
                number = 1 if loop.trips is None else loop.trips
                self.loops.append(loop)
                for part in (*called["body"], *called["condition"]):
                    self.visit(part, times=times * number, frame=None)
            elif instruction.opcode in ("call", "conditional"):
                # All branches of a conditional count, since the program does not show which runs.
                for part in itertools.chain(*called.values()):
                    self.visit(part, times=times, frame=None)
            elif "calls" in called and instruction.opcode not in ("async-update", "async-done"):
                for part in called["calls"]:
                    self.visit(part, times=times, frame=frame_number)
