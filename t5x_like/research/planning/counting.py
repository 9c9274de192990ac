"""Count parameters by part of the model, and FLOPs of a step by formula: arithmetic on shapes."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jaxtyping import PyTree

from t5x_like.research.planning.batches import BatchShapes

OWN_PARTS = ("teacher", "generator")  # auxiliary networks, counted as separate parts


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One array of parameters.

    Attributes:
        path: the path in the parameter tree.
        shape: the global shape.
        axes: the logical name of each axis.
        active: the share of the array that one token uses: for experts, choices / experts.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    active: float = 1.0

    @property
    def size(self) -> int:
        """The number of parameters."""
        return math.prod(self.shape)

    @property
    def part(self) -> str:
        """The part of the model that the array belongs to."""
        if self.path[0] in OWN_PARTS:
            return self.path[0]
        if "experts" in self.axes:
            return "experts"
        if "router" in self.path or "router" in self.axes:
            return "router"
        if any(name.endswith("norm") for name in self.path):
            return "norms"
        if {"buckets", "positions", "types"} & set(self.axes):
            return "positions"
        if any(name.endswith("head") for name in self.path):
            return "head"
        if any(name.endswith("attention") for name in self.path):
            return "attention"
        if "feed_forward" in self.path:
            return "feed-forward"
        # ALBERT's factorized embedding has a projection.
        is_embedding = "vocab" in self.axes or "projection" in self.path
        return "embedding" if is_embedding else "other"

    def along(self, *names: str) -> int:
        """Return the product of the sizes of the axes with these names."""
        return math.prod(
            size for size, name in zip(self.shape, self.axes, strict=True) if name in names
        )


def parameters(shapes: PyTree, axes: PyTree, *, model: Mapping[str, Any]) -> list[Parameter]:
    """List the parameters of a model.

    Args:
        shapes: tree of ShapeDtypeStructs.
        axes: tree of PartitionSpecs of the same structure.
        model: the settings of the network, which determine how many experts a token is routed to.
    """
    arrays = []
    leaves = jax.tree.leaves_with_path(shapes)
    for (path, leaf), names in zip(leaves, jax.tree.leaves(axes), strict=True):
        axis_names = tuple(names) + (None,) * (leaf.ndim - len(tuple(names)))
        words = tuple(jax.tree_util.keystr(path, simple=True, separator="/").split("/"))
        parameter = Parameter(words, leaf.shape, axis_names)
        if "experts" in axis_names:
            share = choices(model) / parameter.along("experts")
            parameter = dataclasses.replace(parameter, active=min(1.0, share))
        arrays.append(parameter)
    return arrays


def choices(model: Mapping[str, Any]) -> float:
    """Return the number of experts that each token is routed to.

    It is the setting `chosen` of the network with experts, which may be nested, or otherwise
    follows from the name of its router. With expert choice it is an average: each expert takes
    `capacity_factor` times an equal share of the tokens.
    """
    model = _with_experts(model)
    if "chosen" in model:
        return model["chosen"]
    router = model.get("router", "")
    return {"top2": 2, "expert_choice": model.get("capacity_factor", 1.0)}.get(router, 1)


def _with_experts(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the network that has experts, or {}."""
    if "experts" in model:
        return model
    parts = (_with_experts(part) for part in model.values() if isinstance(part, Mapping))
    return next(filter(None, parts), {})


def by_part(parameters: list[Parameter]) -> dict[str, dict[str, int]]:
    """Return {part: {"total": parameters, "active": parameters per token}}, largest first."""
    parts: dict[str, dict[str, int]] = {}
    for parameter in parameters:
        sums = parts.setdefault(parameter.part, {"total": 0, "active": 0})
        sums["total"] += parameter.size
        sums["active"] += round(parameter.size * parameter.active)
    return dict(sorted(parts.items(), key=lambda item: -item[1]["total"]))


def formula_flops(parameters: list[Parameter], batch: BatchShapes) -> int:
    """Return the FLOPs of a training step: 6 per active parameter and token, plus attention.

    Kaplan et al. 2020, section 2.1: 6 N per token, where N excludes embeddings that are looked up.
    Chowdhery et al. 2022 (PaLM), appendix B: 12 x layers x heads x width x length per token for
    attention. Encoder and decoder count the tokens of their own sides; a tied output layer counts
    like an untied output layer.
    """
    rows, lengths = _lengths(batch)
    total = 0.0
    for parameter in parameters:
        tokens, keys = _sides(parameter, lengths)
        if parameter.part not in ("embedding", "positions"):
            total += 6 * parameter.size * parameter.active * tokens
        if parameter.path[-2:] == ("query", "kernel"):
            total += 12 * parameter.size / parameter.along("embed") * tokens * keys
    return round(rows * (total + 6 * _tied(parameters) * lengths[_last(lengths)]))


def scores(parameters: list[Parameter], batch: BatchShapes) -> float:
    """Return the attention scores per token of the batch, over all heads and layers."""
    rows, lengths = _lengths(batch)
    count = 0
    for parameter in parameters:
        tokens, keys = _sides(parameter, lengths)
        if parameter.path[-2:] == ("query", "kernel"):
            count += parameter.along("layers", "heads") * tokens * keys
    return rows * count / (rows * sum(lengths.values()))


def _last(lengths: dict[str, int]) -> str:
    return "decoder" if "decoder" in lengths else "encoder"


def _lengths(batch: BatchShapes) -> tuple[int, dict[str, int]]:
    """Return the rows of a batch, and the tokens per row of each side."""
    sides = {}
    rows = 0
    for side in ("encoder", "decoder"):
        if x := batch.get(f"{side}_input_tokens"):
            rows, sides[side] = x.shape[0], math.prod(x.shape[1:])
    return rows, sides


def _sides(parameter: Parameter, lengths: dict[str, int]) -> tuple[int, int]:
    """Return the tokens per row that use a parameter, and the keys that each attends to."""
    last = lengths[_last(lengths)]
    first = lengths.get("encoder", last)
    if "cross_attention" in parameter.path:
        made_of_source = {"key", "value"} & set(parameter.path)
        return (first if made_of_source else last), first
    tokens = last if parameter.path[0] in ("decoder", "lm_head") else first
    return tokens, tokens


def _tied(parameters: list[Parameter]) -> int:
    """Return the number of embedding parameters if the output layer is tied to them, or 0."""
    has_output_weights = any(
        parameter.part == "head" and parameter.along("vocab") > 1 and len(parameter.shape) > 1
        for parameter in parameters
    )
    if has_output_weights:
        return 0
    return sum(parameter.size for parameter in parameters if parameter.part == "embedding")


def state_bytes(tree: PyTree) -> int:
    """Return the bytes of a tree of arrays or shapes over all devices."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def shards(shapes: PyTree, shardings: PyTree) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield the shape and dtype of one device's shard of each array."""
    for x, sharding in zip(jax.tree.leaves(shapes), jax.tree.leaves(shardings), strict=True):
        yield sharding.shard_shape(x.shape), x.dtype


def device_bytes(shapes: PyTree, shardings: PyTree) -> int:
    """Return the bytes of a tree on one device."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shards(shapes, shardings))
