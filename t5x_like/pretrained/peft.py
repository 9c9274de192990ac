"""PEFT's LoRA adapters: a folder with adapter_config.json and adapter_model.safetensors.

The file has the matrices A [rank, inputs] and B [outputs, rank] of modules of Hugging Face's class,
and tensors that replace the class's (a trained head). A weight [outputs, inputs] of the class thus
becomes W + scale B A; GPT-2's weights are [inputs, outputs] (`fan_in_fan_out`).
"""

import collections
import dataclasses
import math
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from t5x_like import hub
from t5x_like.hf import folder as files
from t5x_like.hf.weight_map import (
    AxisLayout,
    Index,
    Piece,
    WeightMap,
    canonical_names,
    disassemble,
    pieces,
)
from t5x_like.nn.linear import LORA_A, LORA_B
from t5x_like.nn.lora import is_matrix

CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PART = re.compile(r"(.*)\.lora_(A|B)\.weight")
# Settings that change what the matrices mean, or the weights beside which they are.
_NOT_SUPPORTED = (
    *("use_dora", "use_qalora", "use_bdlora", "lora_bias", "layer_replication"),
    *("target_parameters", "alora_invocation_tokens", "kasa_config", "monteclora_config"),
)
_INITIAL = (None, True, False, "gaussian", "eva")  # the others change the weights of the base
# The head of the class that PEFT makes for a task.
_HEADS = {
    "SEQ_CLS": "classification",
    "TOKEN_CLS": "tagging",
    "QUESTION_ANS": "question_answering",
}
_TASKS = {head: task for task, head in _HEADS.items()} | {"regression": "SEQ_CLS"}


class LowRankUpdate(NamedTuple):
    """The matrices of one weight: A [rank, inputs], B [outputs, rank], and the factor of B A."""

    a: np.ndarray
    b: np.ndarray
    scale: float


@dataclasses.dataclass(frozen=True)
class Adapter:
    """An adapter in memory.

    Attributes:
        folder: where it is.
        config: its adapter_config.json.
        pairs: {name of the weight that they change: matrices}.
        replaced: {name of a tensor: the tensor that replaces it}.
    """

    folder: pathlib.Path
    config: dict[str, Any]
    pairs: dict[str, LowRankUpdate]
    replaced: dict[str, np.ndarray]

    @property
    def base(self) -> pathlib.Path:
        """The folder of the model that the adapter belongs to, or of the hub's model.

        Raises:
            ValueError: there is no such model, or it is not in Hugging Face's format.
        """
        name = str(self.config.get("base_model_name_or_path") or "")
        path = pathlib.Path(name)
        if name and not path.is_dir() and hub.names(name):
            path = hub.folder(name)
        if not name or "model_type" not in _config_of(path):
            raise ValueError(
                f"{self.folder / CONFIG} has base_model_name_or_path={name!r}, which is not a "
                "Hugging Face folder: set it to the folder of the base model"
            )
        return path

    @property
    def lora(self) -> dict[str, Any]:
        """The `rank` and `alpha` of all pairs; several ranks or alphas are written as a text."""
        ranks = sorted({pair.a.shape[0] for pair in self.pairs.values()})
        alphas = sorted({pair.scale * pair.a.shape[0] for pair in self.pairs.values()})
        values: dict[str, Sequence[Any]] = {"rank": ranks, "alpha": alphas}
        return {
            name: distinct[0] if len(distinct) == 1 else " and ".join(map(str, distinct))
            for name, distinct in values.items()
            if distinct
        }

    def settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the head and number of labels of the adapter's class, if the base has another."""
        head = _HEADS.get(str(self.config.get("task_type")))
        if "head" not in config or head in (None, config["head"]):
            return {}
        rows = [x.shape[0] for x in self.replaced.values() if x.ndim == 2]
        return {"head": head, "labels": min(rows)} if rows else {"head": head}

    def renamed(self, aliases: Mapping[str, str]) -> "Adapter":
        """Return the adapter with the names of tensors in the weight map, see `canonical_names`."""
        names = _canonical((*self.pairs, *self.replaced), aliases)
        pairs = {names[name]: pair for name, pair in self.pairs.items()}
        replaced = {names[name]: tensor for name, tensor in self.replaced.items()}
        return dataclasses.replace(self, pairs=pairs, replaced=replaced)

    def matrices(
        self, kernels: Mapping[str, list[Piece]], shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, np.ndarray]:
        """Return A and B of our layers, as far as the adapter has them with these shapes.

        Layers that are one module in the file, such as GPT-2's query, key and value, get the
        same A.

        Args:
            kernels: {path: pieces of the kernel} for all layers.
            shapes: {path of a matrix: shape}, with both matrices of each layer.
        """
        matrices: dict[str, np.ndarray] = {}
        for path, parts in kernels.items():
            layer = path.removesuffix("/kernel")
            names = f"{layer}/{LORA_A}", f"{layer}/{LORA_B}"
            if not all(piece.tensor in self.pairs for piece in parts):
                continue
            arrays = [np.empty(shapes[name], np.float32) for name in names]
            inputs = arrays[0].ndim - len(parts[0].index) - 1
            tasks = [
                (array[piece.index], layout, matrix)
                for piece in parts
                for array, layout, matrix in zip(
                    arrays, _layouts(piece, inputs), self.pairs[piece.tensor][:2], strict=True
                )
            ]
            if any(layout.their_shape(view.shape) != x.shape for view, layout, x in tasks):
                continue
            for view, layout, matrix in tasks:  # `view` is of its array in `arrays`
                index = tuple(slice(0, size) for size in view.shape)
                view[...] = layout.read(matrix.__getitem__, view.shape, index)
            matrices |= dict(zip(names, arrays, strict=True))
        return matrices


def _config_of(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / files.CONFIG
    return files.read_json(path) if path.is_file() else {}


def _canonical(names: Collection[str], aliases: Mapping[str, str]) -> dict[str, str]:
    """Return {name in a file: name in the weight map}."""
    groups = canonical_names(names, aliases, wanted=())
    return {original: name for name, originals in groups.items() for original in originals}


class AdaptedTensors:
    """The tensors of a base folder with an adapter's changes; see `hf.folder.TensorFiles`.

    Attributes:
        base: the tensors without the adapter.
        adapter: the adapter, with the names of the weight map.

    Raises:
        ValueError: the base has no weight for a pair of matrices, or a weight of another shape.
    """

    def __init__(self, base: files.TensorFiles, adapter: Adapter, *, aliases: Mapping[str, str]):
        self.base, self.adapter, self.folder = base, adapter.renamed(aliases), base.folder
        self._names = _canonical(base.names, aliases)
        held = set(self._names.values())
        new = [name for name in self.adapter.replaced if name not in held]
        self._names |= {name: name for name in new}
        self.names = list(self._names)
        for name, pair in self.adapter.pairs.items():
            shapes = [
                self.shape(original) for original, known in self._names.items() if known == name
            ]
            shape = (pair.b.shape[0], pair.a.shape[1])
            if not shapes or shapes[0] not in (shape, shape[::-1]):
                has = f"there has shape {list(shapes[0])}" if shapes else "is not there"
                raise ValueError(
                    f"{adapter.folder} has matrices for {name} as {list(shape)}, which {has}: its "
                    f"base is {base.folder}"
                )

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        replaced = self.adapter.replaced.get(self._names[name])
        return self.base.shape(name) if replaced is None else replaced.shape

    def read(self, name: str, index: Index | None = None) -> np.ndarray:
        """Read a tensor, or its part at an index, with the adapter's product added in float32."""
        known = self._names[name]
        if (replaced := self.adapter.replaced.get(known)) is not None:
            return replaced[index] if index else replaced
        tensor = self.base.read(name, index)
        if known not in self.adapter.pairs:
            return tensor
        a, b, scale = self.adapter.pairs[known]
        left, right = b, a
        if self._has_inputs_first(name, (b.shape[0], a.shape[1])):
            left, right = a.T, b.T
        rows, columns = index or (slice(None), slice(None))
        return tensor.astype(np.float32) + np.float32(scale) * (left[rows] @ right[:, columns])

    def _has_inputs_first(self, name: str, shape: tuple[int, int]) -> bool:
        """Return whether a weight is [inputs, outputs]; `shape` is [outputs, inputs]."""
        if shape[0] == shape[1]:
            return bool(self.adapter.config.get("fan_in_fan_out"))
        return self.shape(name) != shape


def read(folder: pathlib.Path) -> Adapter:
    """Read an adapter.

    Raises:
        ValueError: a file is missing or damaged, or the adapter is not a LoRA of a supported kind.
    """
    config = files.read_json(folder / CONFIG)
    if (kind := config.get("peft_type")) != "LORA":
        raise ValueError(f"{folder / CONFIG}: peft_type={kind!r} is not supported; 'LORA' is")
    for key in _NOT_SUPPORTED:
        if config.get(key):
            raise ValueError(f"{folder / CONFIG}: {key}={config[key]!r} is not supported")
    if (initial := config.get("init_lora_weights")) not in _INITIAL:
        raise ValueError(
            f"{folder / CONFIG}: init_lora_weights={initial!r} is not supported: it changes the "
            "weights of the base model"
        )
    path = folder / _TENSORS
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise ValueError(f"{folder} has {CONFIG}, but no {_TENSORS}") from None
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or incomplete: {error}") from error
    modules: dict[str, dict[str, np.ndarray]] = collections.defaultdict(dict)
    replaced = {}
    for name, tensor in tensors.items():
        known = name.removeprefix(_PREFIX)
        if match := _PART.fullmatch(known):
            modules[match[1]][match[2]] = tensor
        elif name == known or "lora_" in known:
            raise ValueError(f"{path}: the tensor {name} is not supported")
        else:
            replaced[known] = tensor
    pairs = {
        f"{module}.weight": _pair(path, module, config, matrices)
        for module, matrices in modules.items()
    }
    return Adapter(folder, config, pairs, replaced)


def _pair(
    path: pathlib.Path, module: str, config: Mapping[str, Any], matrices: Mapping[str, np.ndarray]
) -> LowRankUpdate:
    if matrices.keys() != {"A", "B"} or any(x.ndim != 2 for x in matrices.values()):
        raise ValueError(f"{path}: {module} has not two matrices, lora_A and lora_B")
    a, b = (matrices[name].astype(np.float32) for name in "AB")
    rank = _pattern(config.get("rank_pattern"), module, config.get("r"))
    if not a.shape[0] == b.shape[1] == rank:
        raise ValueError(
            f"{path}: {module} has matrices of shapes {list(a.shape)} and {list(b.shape)}; "
            f"{CONFIG} implies the rank {rank}"
        )
    alpha = _pattern(config.get("alpha_pattern"), module, config.get("lora_alpha"))
    return LowRankUpdate(a, b, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _pattern(patterns: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """Return the value of the first pattern that matches a module's name or its end."""
    for pattern, value in (patterns or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            return value
    return default


def _layouts(piece: Piece, inputs: int) -> tuple[AxisLayout, AxisLayout]:
    """Return the layouts of A [rank, inputs] and B [outputs, rank] of a kernel's piece.

    Args:
        inputs: the number of input axes of our kernel, its first.

    Raises:
        ValueError: the tensor is not a matrix between these inputs and outputs.
    """
    layout = piece.layout or AxisLayout((("inputs",), ("outputs",)), ("inputs", "outputs"))
    input_axes, output_axes = layout.ours[:inputs], layout.ours[inputs:]
    sides = {tuple(a for a in group if "/" not in a): group for group in layout.theirs}
    if len(piece.tensor_shape) != 2 or sides.keys() != {input_axes, output_axes}:
        raise ValueError(f"PEFT has no LoRA matrices for {piece.tensor}, which is not a matrix")
    rank = ("rank",)
    return (
        AxisLayout((rank, sides[input_axes]), (*input_axes, "rank")),
        AxisLayout((sides[output_axes], rank), ("rank", *output_axes)),
    )


def task_of(head: str, *, sides: Sequence[str], generates: bool) -> str | None:
    """Return PEFT's name of a network's task; None if it has none, as for masked tokens.

    Args:
        head: the network's head, "" if it has none.
        sides, generates: see `nn.networks`.
    """
    if generates:
        return "SEQ_2_SEQ_LM" if "encoder" in sides else "CAUSAL_LM"
    return _TASKS.get(head)


def write(
    folder: pathlib.Path,
    trained: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    weights: WeightMap,
    rank: int,
    alpha: float,
    base: str,
    task: str | None,
) -> None:
    """Write an adapter that PEFT loads beside the base model.

    Layers that are one module of Hugging Face's class, such as GPT-2's query, key and value, get a
    block of its matrices each, with the rank and alpha of all blocks together.

    Args:
        trained: the trained parameters by path: LoRA matrices, and tensors that replace the base's.
        shapes: the shapes of all parameters.
        weights: the weight map of the network.
        rank, alpha: the settings of the run.
        base: the folder of the base model.
        task: PEFT's name of the network's task, see `task_of`.

    Raises:
        ValueError: a layer is not a matrix in Hugging Face's class, or only a part of a tensor is
            trained.
    """
    layers = [path.removesuffix(f"/{LORA_A}") for path in trained if path.endswith(f"/{LORA_A}")]
    kernels = pieces(weights, {f"{layer}/kernel": shapes[f"{layer}/kernel"] for layer in layers})
    blocks: dict[str, list[tuple[str, Piece]]] = collections.defaultdict(list)
    for path, parts in kernels.items():
        for piece in parts:
            blocks[piece.tensor].append((path.removesuffix("/kernel"), piece))
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    first = False
    for name, group in blocks.items():
        a, b, first = _joined(group, trained, rank=rank)
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
        ranks[module] = len(a)
    replaced = _replaced({k: x for k, x in trained.items() if not is_matrix(k)}, shapes, weights)
    modules = sorted({name.rpartition(".")[0] for name in replaced})
    other_ranks = {name: size for name, size in ranks.items() if size != rank}
    config = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": other_ranks,
        "alpha_pattern": {name: alpha * size / rank for name, size in other_ranks.items()},
        "target_modules": sorted(ranks),
        "modules_to_save": modules or None,
        "fan_in_fan_out": first,
        "use_rslora": False,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    named = {
        f"{_PREFIX}{name}": np.ascontiguousarray(x) for name, x in (tensors | replaced).items()
    }
    save_file(named, folder / _TENSORS, metadata={"format": "pt"})
    files.write_json(folder / CONFIG, config)


def _joined(
    blocks: Sequence[tuple[str, Piece]], trained: Mapping[str, np.ndarray], *, rank: int
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return A and B of a module, with a block for each layer, and whether inputs come first.

    Args:
        blocks: (layer, the piece of its kernel) for the layers in the module.
    """
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    first = False
    for layer, piece in blocks:
        arrays = [trained[f"{layer}/{name}"][piece.index] for name in (LORA_A, LORA_B)]
        layouts = _layouts(piece, arrays[0].ndim - 1)
        both = []
        for array, layout in zip(arrays, layouts, strict=True):
            both.append(np.zeros(layout.their_shape(array.shape), np.float32))
            layout.place(both[-1], array.shape)[...] = array
        parts.append((both[0], both[1]))
        first = piece.layout is None or layouts[0].theirs[1] == piece.layout.theirs[0]
    return (
        np.concatenate([a for a, _ in parts], axis=0),
        np.concatenate([b for _, b in parts], axis=1),
        first,
    )


def _replaced(
    trained: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], weights: WeightMap
) -> dict[str, np.ndarray]:
    """Return the tensors of trained parameters other than LoRA matrices."""
    parts = pieces(weights, {path: x.shape for path, x in trained.items()})
    wanted = {piece.tensor for group in parts.values() for piece in group}
    base = {path: shape for path, shape in shapes.items() if not is_matrix(path)}
    for path, group in pieces(weights, base).items():
        if path not in trained and (same := {piece.tensor for piece in group} & wanted):
            raise ValueError(
                f"{path} is not trained, and other parts of {min(same)} are: PEFT's file has only "
                "whole tensors"
            )
    return {tensor.name: tensor.load() for tensor in disassemble(trained, parts)}
