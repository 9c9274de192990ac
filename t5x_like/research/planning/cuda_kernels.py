"""Kernels of a GPU program: their names, and the FLOPs of calls of cuBLAS and cuDNN."""

import collections
import math
import re
from collections.abc import Sequence

from t5x_like.research.planning.hlo import Array, Instruction, Program, Visit

_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_FUSION = re.compile(r'"fusion_backend_config":\{"kind":"([^"]+)"')
_LIBRARIES = ("__cublas$", "__cudnn$")
# A fusion of a call and the slices that it reads and writes; the call counts by itself.
_WRAPPER = "__custom_fusion"
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions": ?\[([^\]]*)\]')
# Of a kernel of attention: the scores' shape, [B, H, T, S], and which of them are computed.
_SCORES = re.compile(r'"intermediate_tensor_shape": ?\{[^[]*"dimensions": ?\[([^\]]*)\]')
_MASK = re.compile(r'"mask_type": ?"(\w+)"')
_WINDOW = re.compile(r'"sliding_window_length": ?(\d+)')
# Products of attention: of the forward pass scores and values; of the backward pass scores again,
# and the gradients of weights, values, queries and keys.
_FORWARD, _BACKWARD = 2, 5


def target(instruction: Instruction) -> str:
    """Return the function that a custom call calls; "" for other instructions."""
    if instruction.opcode != "custom-call":
        return ""
    match = _TARGET.search(instruction.attributes)
    return match[1] if match else ""


def is_library_call(instruction: Instruction) -> bool:
    """Return whether an instruction calls cuBLAS or cuDNN."""
    return target(instruction).startswith(_LIBRARIES)


def names(program: Program) -> dict[str, int]:
    """Return {kernel: executions in a step}, the most frequent first.

    A call of a library has its own name, `__cublas$lt$matmul` or `__cudnn$fmhaSoftmax`; a fusion
    that Triton compiles is `__triton`, a fusion of XLA's own `fusion`.
    """
    counts: collections.Counter[str] = collections.Counter()
    for visit, instruction in program.instructions():
        if name := _name(visit, instruction):
            counts[name] += visit.times
    return dict(counts.most_common())


def _name(visit: Visit, instruction: Instruction) -> str:
    if instruction.opcode not in ("fusion", "fusion-start"):
        return target(instruction)
    if not visit.is_frame:
        return ""
    match = _FUSION.search(instruction.attributes)
    kind = match[1] if match else "fusion"
    return "" if kind == _WRAPPER else kind


def flops(instruction: Instruction, operands: Sequence[Array]) -> int:
    """Return the FLOPs of a call of cuBLAS or cuDNN; 0 for another instruction.

    A causal kernel of attention counts the pairs of a query and a key that are not masked, since it
    skips the others, block by block.
    """
    name = target(instruction)
    if name.startswith("__cublas$"):
        match = _CONTRACTED.search(instruction.attributes)
        axes = re.findall(r"\d+", match[1]) if match else []
        contracted = math.prod(operands[0].shape[int(axis)] for axis in axes)
        return 2 * math.prod(instruction.arrays[0].shape) * contracted
    scores = _SCORES.search(instruction.attributes)
    if name.startswith("__cudnn$fmha") and scores:
        rows, heads, queries, keys = (int(size) for size in re.findall(r"\d+", scores[1]))
        products = _BACKWARD if name.endswith("Backward") else _FORWARD
        width = operands[0].shape[-1]
        return products * 2 * rows * heads * width * _pairs(instruction, queries, keys)
    return 0


def _pairs(instruction: Instruction, queries: int, keys: int) -> int:
    """Return the pairs of a query and a key that a kernel of attention computes at least."""
    mask, window = (pattern.search(instruction.attributes) for pattern in (_MASK, _WINDOW))
    if mask is None or "CAUSAL" not in mask[1]:
        return queries * keys
    most = (int(window[1]) if window else 0) or keys
    return sum(min(query, keys, most) for query in range(1, queries + 1))


def written(instruction: Instruction) -> tuple[Array, ...]:
    """Return the arrays of an instruction's value, without the workspace of a library's call."""
    if not is_library_call(instruction):
        return instruction.arrays
    return tuple(array for array in instruction.arrays if not is_workspace(array))


def is_workspace(array: Array) -> bool:
    """Return whether an array of a library's call is its workspace: bytes in one dimension."""
    return array.dtype in ("s8", "u8") and len(array.shape) == 1
