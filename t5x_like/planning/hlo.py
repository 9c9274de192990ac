"""Parse optimized HLO text into instructions."""

import dataclasses
import functools
import math
import re

_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2}
_BYTES |= {"u16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8, "c64": 8}
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
# Memory spaces in a layout: 1, 3 and 4 are on-chip (VMEM, v4's CMEM, SMEM), 5 is on the host.
_ON_CHIP = re.compile(r"S\([134]\)")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(calls|to_apply|body|condition|branch_computations)=\{?([^{}]*?)\}?(?=, |$)")


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of a value.

    Attributes:
        dtype: the type in HLO's notation, such as `bf16`.
        shape: the shape of one device's shard.
        on_chip: whether it is in on-chip memory rather than HBM.
    """

    dtype: str
    shape: tuple[int, ...]
    on_chip: bool = False

    @property
    def bytes(self) -> int:
        """The size in bytes, without padding."""
        width = 1 if self.dtype.startswith("f8") else _BYTES.get(self.dtype, 0)
        return int(math.prod(self.shape) * width)


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
        found = _CALLED.findall(self.attributes)
        return {kind: tuple(_NAME.findall(names)) for kind, names in found}


Computation = dict[str, Instruction]


def read(text: str) -> tuple[dict[str, Computation], str]:
    """Parse `compiled.as_text()` into {name: computation} and the name of the entry computation.

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
        elif line == "}":
            current = None
        elif current is not None and line.startswith(" ") and " = " in line:
            # Further lines with a kernel's settings are not indented, and are skipped.
            instruction = _instruction(line.strip())
            current[instruction.name] = instruction
    if not entry:
        raise ValueError("the text of the compiled program has no ENTRY")
    return computations, entry


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
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"no closing parenthesis in the compiled program: {text[start : start + 80]}")


def arrays(text: str) -> tuple[Array, ...]:
    """Parse the arrays of a type: two for `(f32[2,3]{1,0}, s32[])`."""
    return tuple(
        Array(
            dtype, tuple(map(int, shape.split(","))) if shape else (), bool(_ON_CHIP.search(layout))
        )
        for dtype, shape, layout in _ARRAY.findall(text)
    )
