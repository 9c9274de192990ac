"""FLOPs of the matrix products of a compiled program, and its memory traffic in bytes."""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterator

import numpy as np

from t5x_like.research.planning import cuda_kernels
from t5x_like.research.planning.hlo import (
    ENDS,
    STARTS,
    Array,
    Computation,
    Instruction,
    Program,
    Visit,
)

_KERNEL = re.compile(r'"cost_estimate":\{([^}]*)\}')
# Matrix products per kernel of splash attention: scores and values in the forward pass; in the
# backward pass scores, gradients of weights, and gradients of queries, or of keys and values. The
# fused kernel computes both: the name is the second's, and its queries' gradient is one value more.
SPLASH = {"splash_mha_fwd": 2, "splash_mha_dq": 3, "splash_mha_dkv": 4}
_VALUES_OF_DKV = 4
_BLOCK = r'block_{}(?:_dq|_dkv)?\\": (\d+)'  # in the settings of such a kernel
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
# Instructions that only name values and move no bytes.
_FREE = {"parameter", "tuple", "get-tuple-element", "bitcast", "constant", "while", "conditional"}
_FREE |= {"call", "after-all", "partition-id", "replica-id", "iota", "opt-barrier", "async-update"}
_FREE |= {"recv"}  # `recv-done` writes what it receives
_FREE |= {"fusion-done"}  # its fusion counts at the start
_FREE_CALLS = ('"AllocateBuffer"', '"ConcatBitcast"')  # in the attributes of a custom call
_SLICES = ("dynamic-slice", "gather", "slice")
_UPDATE = "dynamic-update-slice"


@dataclasses.dataclass(frozen=True)
class Products:
    """The matrix products of a step with operands of the same types.

    Attributes:
        count: executions of products, or of kernels that compute several.
        flops: their FLOPs on one device, 2 per multiply-add.
    """

    count: int
    flops: int


def by_type(program: Program) -> dict[str, Products]:
    """Return {types of the operands: products of a step on one device}, the most FLOPs first.

    Types are in HLO's notation: `bf16`, or `bf16 x f32` if they differ. The bodies of loops count
    as often as they run; `compiled.cost_analysis()` counts them once. A kernel counts with its
    declared FLOPs, splash attention, which declares none, with the products of its blocks, cuBLAS
    and cuDNN with the products of their arguments. Any other kernel counts as 0.
    """
    sums: dict[str, list[int]] = {}
    for times, count, types in _work(program):
        sums_of_type = sums.setdefault(types, [0, 0])
        sums_of_type[0] += times
        sums_of_type[1] += times * count
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    return {types: Products(times, count) for types, (times, count) in ordered}


def flops(program: Program) -> int:
    """Return the FLOPs of the products of a step on one device."""
    return sum(products.flops for products in by_type(program).values())


def _work(program: Program) -> Iterator[tuple[int, int, str]]:
    """Yield each product's executions, FLOPs of each, and types of the operands."""
    for visit, instruction in program.instructions():
        if instruction.opcode in ("dot", "convolution"):
            left, right = program.operands(visit, instruction)
            count = _dot if instruction.opcode == "dot" else _convolution
            yield visit.times, count(instruction, left, right), _types(left, right)
        elif instruction.opcode == "custom-call":
            operands = program.operands(visit, instruction)
            if work := _of_kernel(instruction, operands):
                yield visit.times, work, _types(*_factors(instruction, operands))


def _types(*operands: Array) -> str:
    return " x ".join(sorted({array.dtype for array in operands}))


def _factors(instruction: Instruction, operands: list[Array]) -> list[Array]:
    """Return the first two matrices of a library's kernel, the two largest of another kernel.

    The other operands may be indices, masks, a table of biases or sums of rows.
    """
    if cuda_kernels.is_library_call(instruction):
        return operands[:2]
    floats = [array for array in operands if array.dtype.startswith(("bf", "f"))]
    return sorted(floats, key=lambda array: -math.prod(array.shape))[:2]


def _of_kernel(instruction: Instruction, operands: list[Array]) -> int:
    for name, products in SPLASH.items():
        if instruction.name.startswith(name):
            fused = name == "splash_mha_dkv" and len(instruction.arrays) > _VALUES_OF_DKV
            return (products + fused) * _splash_product(instruction, operands)
    return cuda_kernels.flops(instruction, operands) or _declared(instruction, "flops")


def _declared(instruction: Instruction, name: str) -> int:
    """Return a number from the cost estimate declared by a Pallas kernel; 0 without one."""
    if instruction.opcode != "custom-call":
        return 0
    match = _KERNEL.search(instruction.attributes)
    return int(json.loads("{" + match[1] + "}")[name]) if match else 0


def _splash_product(kernel: Instruction, operands: list[Array]) -> int:
    """Return the FLOPs of one product of queries and keys in a kernel of splash attention.

    The kernel has an array with the numbers of the blocks that it computes: [1, n, m], at most m
    blocks of keys for each of n blocks of queries, or, in the kernel of the keys' gradients,
    [1, m, n]. With a causal mask the first blocks of queries, or the last of keys, have fewer. A
    window to both sides may have a few more. Then come the queries, [..., H, T, K]; a mask that is
    not full also needs a matrix of the queries' slots.
    """
    numbers = next(array.shape for array in operands if array.dtype == "s8")
    query = next(array.shape for array in operands if array.dtype in ("bf16", "f32"))
    found = (re.search(_BLOCK.format(side), kernel.attributes) for side in ("q", "kv"))
    outer, inner = (int(match[1]) for match in found if match)
    most = numbers[-1]
    if kernel.name.startswith("splash_mha_dkv"):
        outer, inner, most = inner, outer, numbers[-2]
    hidden = any(array.dtype == "s32" and len(array.shape) == 2 for array in operands)
    blocks = query[-2] // outer
    seen = (-(-n * outer // inner) if hidden else most for n in range(1, blocks + 1))
    pairs = sum(min(most, number) for number in seen) * outer * inner
    return 2 * math.prod(query[:-2]) * pairs * query[-1]


def _dot(instruction: Instruction, left: Array, right: Array) -> int:
    match = _CONTRACTED.search(instruction.attributes)
    axes = [int(axis) for axis in match[1].split(",") if axis] if match else []
    contracted = math.prod(left.shape[axis] for axis in axes)
    return 2 * math.prod(instruction.arrays[0].shape) * contracted


def _convolution(instruction: Instruction, left: Array, right: Array) -> int:
    """Count a convolution; on TPUs, batch axes of matrix products become its spatial axes."""
    match = _LABELS.search(instruction.attributes)
    assert match is not None, instruction
    of_left, of_right, of_out = match.groups()
    out = dict(zip(of_out, instruction.arrays[0].shape, strict=True))
    inputs = dict(zip(of_left, left.shape, strict=True))
    kernel = dict(zip(of_right, right.shape, strict=True))
    window = _window(instruction.attributes)
    positions = 1
    for n, axis in enumerate(sorted(axis for axis in out if axis.isdigit())):
        settings = {name: values[n] for name, values in window.items()}
        positions *= _meetings(inputs[axis], kernel[axis], out[axis], **settings)
    return 2 * out["b"] * out["f"] * kernel["i"] * positions


def _window(attributes: str) -> dict[str, list[int]]:
    """Parse stride, low padding and dilations per spatial axis: `window={size=4x6 stride=3x5}`."""
    match = _WINDOW.search(attributes)
    fields = dict(field.split("=") for field in match[1].split()) if match else {}
    number = len(fields["size"].split("x")) if fields else 0

    def of(name: str, default: str) -> list[int]:
        values = fields.get(name, "x".join([default] * number))
        return [int(value.split("_")[0]) for value in values.split("x")] if values else []

    return {
        "stride": of("stride", "1"),
        "low": of("pad", "0_0"),
        "dilation": of("lhs_dilate", "1"),
        "kernel_dilation": of("rhs_dilate", "1"),
    }


@functools.cache
def _meetings(
    size: int, kernel: int, out: int, *, stride: int, low: int, dilation: int, kernel_dilation: int
) -> int:
    """Count the pairs of output and kernel positions that meet an input, not padding or a gap."""
    positions = np.arange(out)[:, None] * stride + np.arange(kernel) * kernel_dilation - low
    inside = (positions >= 0) & (positions <= (size - 1) * dilation) & (positions % dilation == 0)
    return int(inside.sum())


def memory_bytes(program: Program) -> int:
    """Return the bytes that a step moves to and from one device's main memory, without padding.

    Each instruction reads its operands and writes its value once; instructions that only name
    values are free. For slices and updates in place only the slice counts. What is started and
    ended by two instructions is read at its start and written at its end. Arrays on the chip and on
    the host are free, so that a copy to the host counts once. A kernel moves its declared bytes if
    that is more, since it may read an operand several times.
    """
    return sum(
        visit.times * _traffic(program, visit, instruction)
        for visit, instruction in program.instructions()
        if visit.is_frame and instruction.opcode not in _FREE
    )


def _traffic(program: Program, visit: Visit, instruction: Instruction) -> int:
    if instruction.opcode in ("fusion", "fusion-start"):  # a GPU's streams run the second beside
        return _of_fusion(program, instruction)
    if any(call in instruction.attributes for call in _FREE_CALLS):
        return 0
    opcode, _, part = instruction.opcode.rpartition("-")
    operands = program.operands(visit, instruction)
    if _UPDATE in (opcode, instruction.opcode):  # counts at its start; its end yields all
        return _updated(operands) if part != "done" else 0
    if part == "done":
        return _main(instruction.arrays)
    if part == "start":
        # Its value repeats the operands; the array after them is what the end yields.
        sliced = opcode in _SLICES
        return _sliced(operands, instruction.arrays[len(operands)]) if sliced else _main(operands)
    if instruction.opcode == "send":  # whose value repeats the operands, too
        return _main(operands)
    if instruction.opcode in _SLICES:
        return _sliced(operands, instruction.arrays[0]) + _main(instruction.arrays)
    accessed = _main(cuda_kernels.written(instruction)) + _main(operands)
    return max(accessed, _declared(instruction, "bytes_accessed"))


def _sliced(operands: list[Array], part: Array) -> int:
    """Return the bytes that are read of the first operand, wherever the slice is put."""
    return 0 if operands[0].elsewhere else part.bytes


def _updated(operands: list[Array]) -> int:
    """Return the bytes of an update in place: the slice is read, and written into the first."""
    return _main([operands[1]]) + _sliced(operands, operands[1])


def _main(arrays: list[Array] | tuple[Array, ...]) -> int:
    return sum(array.bytes for array in arrays if not array.elsewhere)


def _of_fusion(program: Program, instruction: Instruction) -> int:
    body = _body(program, instruction)
    read = sum(_read(program, body, n) for n in range(len(instruction.operands)))
    return read + _written(program, body)


def _body(program: Program, fusion: Instruction) -> Computation:
    """Return what a fusion does itself, without a collective that it only advances or ends."""
    body = program.computations[fusion.called["calls"][0]]
    return {
        name: instruction for name, instruction in body.items() if name not in program.continued
    }


def _read(program: Program, body: Computation, number: int) -> int:
    """Return the bytes that a fusion reads of an operand: only slices, or the whole operand."""
    [parameter] = [
        instruction
        for instruction in body.values()
        if instruction.opcode == "parameter" and instruction.arguments == str(number)
    ]
    size, total = _main(parameter.arrays), 0
    for name, user in _uses(program, body, parameter.name):
        first = user.operands[0] == name
        if user.opcode in _SLICES and first:
            total += _inside(body, name, user).bytes  # wherever the slice is put
        elif user.opcode == "fusion":
            inner = _body(program, user)
            indices = [n for n, operand in enumerate(user.operands) if operand == name]
            total += sum(_read(program, inner, index) for index in indices)
        elif user.opcode == _UPDATE and first:
            continue
        elif user.opcode != "tuple" and ENDS not in user.attributes:
            return size
    return min(total, size)


def _uses(program: Program, body: Computation, name: str) -> Iterator[tuple[str, Instruction]]:
    """Yield the users of a value, also by its other names: (name that they use, user)."""
    for user in body.values():
        if name in user.operands:
            if _renames(program, user):
                yield from _uses(program, body, user.name)
            else:
                yield name, user


def _inside(body: Computation, name: str, user: Instruction) -> Array:
    """Return a slice without what lies in the padding, if the value that it is cut from has some.

    libtpu puts two slices together as the maximum of both, each padded with -inf.
    """
    [sliced], padded = user.arrays, body[name]
    if padded.opcode != "pad" or user.opcode == "gather":
        return sliced
    [within] = body[padded.operands[0]].arrays
    return dataclasses.replace(sliced, shape=tuple(map(min, sliced.shape, within.shape)))


def _renames(program: Program, user: Instruction) -> bool:
    """Return whether the value is the operand's, under another shape, tiling or with padding.

    A fusion within a fusion that copies an array into its own memory states another tiling: libtpu
    slices stacked Booleans so.
    """
    free = {"parameter", "bitcast", "pad"}
    if user.opcode != "fusion":
        return user.opcode in free
    if "output_to_operand_aliasing" in user.attributes:
        free.add("copy")
    return {instruction.opcode for instruction in _body(program, user).values()} <= free


def _written(program: Program, body: Computation) -> int:
    """Return the bytes that a fusion writes; of arrays updated in place only the slices."""
    root = next(instruction for instruction in body.values() if instruction.is_root)
    if STARTS in root.attributes:
        return 0
    names = root.operands if root.opcode == "tuple" else (root.name,)
    values = [body[name] for name in names if name in body]
    total = 0
    for value in values:
        if all(array.elsewhere for array in value.arrays):
            continue  # what it is computed from, also in fusions within, has no memory space
        while value.opcode == "bitcast":
            value = body[value.operands[0]]
        if value.opcode == _UPDATE:
            total += body[value.operands[1]].arrays[0].bytes  # wherever the slice was
        elif value.opcode == "fusion":
            total += _written(program, _body(program, value))
        elif value.opcode != "parameter" and not _is_workspace(body, value):
            total += _main(cuda_kernels.written(value))
    return total


def _is_workspace(body: Computation, value: Instruction) -> bool:
    """Return whether a value in a fusion is the workspace of a library's call."""
    return (
        value.opcode == "get-tuple-element"
        and cuda_kernels.is_library_call(body[value.operands[0]])
        and cuda_kernels.is_workspace(value.arrays[0])
    )
