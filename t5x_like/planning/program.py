"""A compiled program: its instructions, and how often a step executes each."""

import dataclasses
import itertools
from collections.abc import Iterator

from t5x_like.planning import hlo, loops
from t5x_like.planning.hlo import Array, Computation, Instruction
from t5x_like.planning.loops import Loop


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
    loops: tuple[Loop, ...]

    def instructions(self) -> Iterator[tuple[Visit, Instruction]]:
        """Yield all instructions that a step executes, with their call sites."""
        for visit in self.visits:
            for instruction in self.computations[visit.name].values():
                yield visit, instruction

    def operands(self, visit: Visit, instruction: Instruction) -> list[Array]:
        """Return the arrays that an instruction reads."""
        there = self.computations[visit.name]
        return [array for name in instruction.operands for array in there[name].arrays]


def parse(text: str) -> Program:
    """Parse `compiled.as_text()`.

    Raises:
        ValueError: the text has no entry computation.
    """
    computations, entry = hlo.read(text)
    walk = _Walk(computations)
    walk.visit(entry, times=1, frame=None)
    return Program(computations, tuple(walk.visits), tuple(walk.loops))


class _Walk:
    """Follows the calls from a computation, and counts how often each is executed."""

    def __init__(self, computations: dict[str, Computation]):
        self.visits: list[Visit] = []
        self.loops: list[Loop] = []
        self._computations = computations
        self._frames = itertools.count()

    def visit(self, name: str, *, times: int, frame: int | None) -> None:
        own = next(self._frames) if frame is None else frame
        self.visits.append(Visit(name, times, own, is_frame=frame is None))
        there = self._computations[name]
        for instruction in there.values():
            called = instruction.called
            if instruction.opcode == "while":
                loop = loops.of(self._computations, there, instruction)
                number = 1 if loop.trips is None else loop.trips
                self.loops.append(loop)
                for part in (*called["body"], *called["condition"]):
                    self.visit(part, times=times * number, frame=None)
            elif instruction.opcode in ("call", "conditional"):
                # All branches of a conditional count, since the program does not show which runs.
                for part in itertools.chain(*called.values()):
                    self.visit(part, times=times, frame=None)
            elif "calls" in called:
                for part in called["calls"]:
                    self.visit(part, times=times, frame=own)
