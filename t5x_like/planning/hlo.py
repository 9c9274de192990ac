"""Optimized HLO text as instructions, and how often a step runs each of them."""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Sequence

_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2}
_BYTES |= {"u16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8, "c64": 8}
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
# Memory spaces of a layout: 1, 3 and 4 are beside the arithmetic (VMEM, v4's CMEM, SMEM), 5 is the
# host's.
_ON_CHIP = re.compile(r"S\([134]\)")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(calls|to_apply|body|condition|branch_computations)=\{?([^{}]*?)\}?(?=, |$)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of a value.

    Attributes:
        dtype: as HLO writes it, `bf16`.
        shape: of a device's part.
        on_chip: whether it lies in the memory beside the arithmetic, not in the main one.
    """

    dtype: str
    shape: tuple[int, ...]
    on_chip: bool = False

    @property
    def bytes(self) -> int:
        """Its size without padding."""
        width = 1 if self.dtype.startswith("f8") else _BYTES.get(self.dtype, 0)
        return int(math.prod(self.shape) * width)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a computation.

    Attributes:
        arrays: of its value; several of a tuple.
        arguments: what stands in its parentheses: operands, or of a constant its value.
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
        """Names of instructions of the same computation."""
        return tuple(_NAME.findall(self.arguments))

    @functools.cached_property
    def called(self) -> dict[str, tuple[str, ...]]:
        """The computations that it runs, by the attribute that names them."""
        found = _CALLED.findall(self.attributes)
        return {kind: tuple(_NAME.findall(names)) for kind, names in found}


Computation = dict[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Visit:
    """A computation at one of the places that run it.

    Attributes:
        times: how often a step runs it there.
        frame: the computation of this visit or, where it lies within an instruction of another, a
            fusion's, that one's: frames run one instruction after the other.
    """

    name: str
    times: int
    frame: int
    is_frame: bool


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
        computations: by name.
        visits: of all that a step runs.
        unknown_loops: loops whose trips the compiler does not know; their bodies count once.
    """

    computations: dict[str, Computation]
    visits: tuple[Visit, ...]
    unknown_loops: int

    def instructions(self) -> Iterator[tuple[Visit, Instruction]]:
        """All instructions that a step runs, with where they stand."""
        for visit in self.visits:
            for instruction in self.computations[visit.name].values():
                yield visit, instruction

    def stacked(self, loop: Instruction) -> list[Array]:
        """The values of a `while` with an entry for each time that its body runs."""
        trips = _trips(self.computations, loop)
        return [array for array in loop.arrays if array.shape[:1] == (trips,)]

    def operands(self, visit: Visit, instruction: Instruction) -> list[Array]:
        """The arrays that an instruction reads."""
        there = self.computations[visit.name]
        return [array for name in instruction.operands for array in there[name].arrays]


def _trips(computations: dict[str, Computation], loop: Instruction) -> int | None:
    """How often a `while` runs its body; None where the program does not tell.

    A scan's condition, where no count is written, compares a counter from 0 with a constant.
    """
    if found := _TRIPS.search(loop.attributes):
        return int(found[1])
    condition = computations[loop.called["condition"][0]]
    root = next(one for one in condition.values() if one.is_root)
    limits = [condition[name] for name in root.operands]
    constants = [one.arguments for one in limits if one.opcode == "constant"]
    is_count = root.opcode == "compare" and "direction=LT" in root.attributes
    return int(constants[0]) if is_count and len(constants) == 1 else None


def parse(text: str) -> Program:
    """Reads `compiled.as_text()`.

    Raises:
        ValueError: the text has no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        if line.endswith("{") and " -> " in line and not line.startswith(" "):
            name = _NAME.search(line)
            assert name is not None, line
            current = computations[name[1]] = {}
            entry = name[1] if line.startswith("ENTRY") else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and " = " in line:
            instruction = _instruction(line.strip())
            current[instruction.name] = instruction
    if not entry:
        raise ValueError("the text of the compiled program has no ENTRY")
    walk = _Walk(computations)
    walk.visit(entry, times=1, frame=None)
    return Program(computations, tuple(walk.visits), walk.unknown_loops)


def _instruction(line: str) -> Instruction:
    name, _, rest = line.partition(" = ")
    # A tuple's type has spaces; an array's has none.
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
    """The place of the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"no closing parenthesis in the compiled program: {text[start : start + 80]}")


def arrays(text: str) -> tuple[Array, ...]:
    """The arrays of a type: of `(f32[2,3]{1,0}, s32[])` two."""
    return tuple(
        Array(
            dtype, tuple(map(int, shape.split(","))) if shape else (), bool(_ON_CHIP.search(layout))
        )
        for dtype, shape, layout in _ARRAY.findall(text)
    )


class _Walk:
    """Follows calls from a computation, and counts how often each is run."""

    def __init__(self, computations: dict[str, Computation]):
        self.visits: list[Visit] = []
        self.unknown_loops = 0
        self._computations = computations
        self._frames = itertools.count()

    def visit(self, name: str, *, times: int, frame: int | None) -> None:
        own = next(self._frames) if frame is None else frame
        self.visits.append(Visit(name, times, own, is_frame=frame is None))
        for instruction in self._computations[name].values():
            called = instruction.called
            if instruction.opcode == "while":
                trips = _trips(self._computations, instruction)
                self.unknown_loops += trips is None
                for part in (*called["body"], *called["condition"]):
                    self.visit(part, times=times * (trips or 1), frame=None)
            elif instruction.opcode in ("call", "conditional"):
                # Of a conditional all branches count: which one runs is not in the program.
                for part in _flat(called):
                    self.visit(part, times=times, frame=None)
            elif "calls" in called:
                for part in called["calls"]:
                    self.visit(part, times=times, frame=own)


def _flat(called: dict[str, tuple[str, ...]]) -> Sequence[str]:
    return [name for names in called.values() for name in names]
