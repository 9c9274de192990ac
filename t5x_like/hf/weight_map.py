"""Weight maps: convert parameters to the tensors of a file, and back."""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.names import hint

WeightMap = Mapping[str, str | tuple[str, str]]
Shape = tuple[int, ...]
Index = tuple[slice, ...]

_SHOWN = 3  # the most names in an error message
_MORE = re.compile(r"(\d+)\+([A-Za-z]\w*)(?:\+(\d+))?")
# A number in a tensor's name: {layer}, {2*layer+1}.
_NUMBER = re.compile(r"\{(?:(\d+)\*)?([a-z_]+)(?:\+(\d+))?\}")


@dataclasses.dataclass(frozen=True)
class AxisLayout:
    """The axes of a tensor in the file and here: "(H K) D -> D H K".

    Axes in parentheses are one axis in the file, the last axis changing fastest. The file may
    have one more axis, written as the index of our parameter on it: "1/3" is the second of three.
    "2+P" is an axis with 2 more indices at its beginning, "20+P+28" also with 28 more at its end.

    Attributes:
        theirs, ours: the axes in the file, in groups that are one axis there, and our axes.
        more: {axis: numbers of indices at its beginning and at its end that only the file has}.
    """

    theirs: tuple[tuple[str, ...], ...]
    ours: tuple[str, ...]
    more: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, pattern: str) -> "AxisLayout":
        """Parse a pattern.

        Raises:
            ValueError: the two sides do not name the same axes, each once.
        """
        left, arrow, right = pattern.partition("->")
        more = {axis: (int(before), int(after or 0)) for before, axis, after in _MORE.findall(left)}
        left = _MORE.sub(r"\2", left)
        groups = tuple(
            tuple(group.strip("()").split()) for group in re.findall(r"\([^()]*\)|[^\s()]+", left)
        )
        axes, ours = list(itertools.chain(*groups)), tuple(right.split())
        axes = [axis for axis in axes if "/" not in axis]
        if not arrow or sorted(axes) != sorted(ours) or len(set(ours)) != len(ours):
            raise ValueError(f"{pattern!r}: both sides of '->' must name the same axes, each once")
        return cls(theirs=groups, ours=ours, more=more)

    def their_shape(self, shape: Shape) -> Shape:
        """Return the shape in the file of a tensor that has `shape` here."""
        sizes = self._sizes(shape)
        return tuple(math.prod(sizes[axis] for axis in group) for group in self.theirs)

    def read(self, read: Callable[[Index], np.ndarray], shape: Shape, index: Index) -> np.ndarray:
        """Read a part of our parameter, from the smallest slice of the file's tensor with it.

        Args:
            read: returns the part of the file's tensor at an index.
            shape: the shape of the whole parameter here.
            index: the part to read, with a start and a stop on each axis.
        """
        sizes, wanted = self._sizes(shape), dict(zip(self.ours, index, strict=True))
        slices: list[slice] = []
        read_shape: list[int] = []
        within: list[int | slice] = []
        for group in self.theirs:
            spans = [self._span(axis, wanted) for axis in group]
            span, read_sizes, inner = _cover([sizes[axis] for axis in group], spans)
            slices.append(span)
            read_shape += read_sizes
            within += [
                extent.start if "/" in axis else extent
                for axis, extent in zip(group, inner, strict=True)
            ]
        part = read(tuple(slices)).reshape(read_shape)[tuple(within)]
        return part.transpose([self._order.index(axis) for axis in self.ours])

    def _span(self, axis: str, wanted: Mapping[str, slice]) -> slice:
        """Return the slice of an axis of the file that `wanted`, the slices of our axes, needs."""
        if "/" in axis:
            number = int(axis.partition("/")[0])
            return slice(number, number + 1)
        before, _ = self.more.get(axis, (0, 0))
        return slice(wanted[axis].start + before, wanted[axis].stop + before)

    def place(self, tensor: np.ndarray, shape: Shape) -> np.ndarray:
        """Return our parameter's part of a contiguous tensor for the file: a view with our axes."""
        sizes, axes = self._sizes(shape), list(itertools.chain(*self.theirs))
        more = {axis: slice(before, -after or None) for axis, (before, after) in self.more.items()}
        part = tuple(
            int(a.partition("/")[0]) if "/" in a else more.get(a, slice(None)) for a in axes
        )
        view = tensor.reshape([sizes[axis] for axis in axes])[part]
        return view.transpose([self._order.index(axis) for axis in self.ours])

    @property
    def _order(self) -> list[str]:
        """Our axes in the file's order."""
        return [axis for axis in itertools.chain(*self.theirs) if "/" not in axis]

    def _sizes(self, shape: Shape) -> dict[str, int]:
        parts = {
            axis: int(axis.partition("/")[2])
            for group in self.theirs
            for axis in group
            if "/" in axis
        }
        axes = zip(self.ours, shape, strict=True)
        return parts | {axis: size + sum(self.more.get(axis, ())) for axis, size in axes}


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of one of our parameters, and the tensor of the file that contains it.

    Attributes:
        tensor, tensor_shape: the tensor's name and shape in the file.
        index: the part's indices along the stacked axes of the parameter, which come first.
        layout: how the axes differ; None if they are the same in the file.
    """

    tensor: str
    tensor_shape: Shape
    index: Shape
    layout: AxisLayout | None


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor to write, and a function that computes it."""

    name: str
    shape: Shape
    dtype: np.dtype
    load: Callable[[], np.ndarray]

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def pieces(weights: WeightMap, shapes: Mapping[str, Shape]) -> dict[str, list[Piece]]:
    """Return the pieces of each parameter, by its path.

    Args:
        shapes: {path: shape} of our parameters ("encoder/final_norm/scale").

    Raises:
        ValueError: a parameter matches no line of the map, or several.
    """
    lines = [(_path_pattern(path), line) for path, line in weights.items()]
    by_path: dict[str, list[Piece]] = {}
    for path, shape in shapes.items():
        matches = [(match, line) for pattern, line in lines if (match := pattern.fullmatch(path))]
        if len(matches) != 1:
            raise ValueError(
                f"the parameter {path} has {len(matches)} lines in the system's weight map, not one"
            )
        match, line = matches[0]
        name, layout = (
            (line, None) if isinstance(line, str) else (line[0], AxisLayout.parse(line[1]))
        )
        numbers = {variable: n for variable, n in match.groupdict().items() if n is not None}
        by_path[path] = _stacked(name, layout, numbers, shape)
    return by_path


def mapped(weights: WeightMap, paths: Iterable[str]) -> list[str]:
    """Return the paths that match a line of the map; parameters of another system may not."""
    patterns = [_path_pattern(path) for path in weights]
    return [path for path in paths if any(pattern.fullmatch(path) for pattern in patterns)]


def _path_pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", path)
    # Odd parts are the names in braces: `block` in a scanned stack, otherwise a numbered name.
    return re.compile(
        "".join(
            rf"(?:block|{part}_(?P<{part}>\d+))" if n % 2 else re.escape(part)
            for n, part in enumerate(parts)
        )
    )


def _stacked(
    name: str, layout: AxisLayout | None, numbers: Mapping[str, str], shape: Shape
) -> list[Piece]:
    used = dict.fromkeys(variable for _, variable, _ in _NUMBER.findall(name))
    variables = [variable for variable in used if variable not in numbers]
    stack, shape = shape[: len(variables)], shape[len(variables) :]
    return [
        Piece(
            tensor=_numbered(name, {**numbers, **dict(zip(variables, index, strict=True))}),
            tensor_shape=layout.their_shape(shape) if layout else shape,
            index=index,
            layout=layout,
        )
        for index in itertools.product(*map(range, stack))
    ]


def _numbered(name: str, numbers: Mapping[str, Any]) -> str:
    def number(match: re.Match[str]) -> str:
        times, variable, plus = match.groups(default="")
        return str(int(times or 1) * int(numbers[variable]) + int(plus or 0))

    return _NUMBER.sub(number, name)


def canonical_names(
    names: Iterable[str], aliases: Mapping[str, str], *, wanted: Collection[str]
) -> dict[str, list[str]]:
    """Return {name of a tensor in the map: its names in the file}, the original before copies.

    Args:
        names: the names in the file.
        aliases: {other name: name in the map}; one `*` stands for the same text on both sides.
        wanted: names in the map, which are not replaced.
    """
    rules = [
        (re.compile(re.escape(other).replace(r"\*", "(.*)")), name.replace("*", r"\1"))
        for other, name in aliases.items()
    ]
    canonical: dict[str, list[str]] = {}
    # A tensor under its name in the map comes before its copies.
    for original in sorted(names, key=lambda name: (name not in wanted, name)):
        name = original
        for pattern, replacement in rules:
            if name not in wanted and pattern.fullmatch(name):
                name = pattern.sub(replacement, name)
        canonical.setdefault(name, []).append(original)
    return canonical


def check_names(wanted: Collection[str], present: Collection[str], *, where: str) -> None:
    """Check that a file has the tensors that the model needs, and no others.

    Raises:
        ValueError: names are missing or unused; the message has the first of both, and the unused
            name that is nearest to the first missing name.
    """
    missing = [name for name in wanted if name not in present]
    unused = [name for name in present if name not in wanted]
    if missing:
        near = hint(missing[0], unused).partition(" Allowed: ")[0]
        rest = f"; it also has {first_names(unused)} that the model does not use" if unused else ""
        raise ValueError(f"{where} lacks {first_names(missing)} that the model needs{rest}.{near}")
    if unused:
        raise ValueError(f"{where} has {first_names(unused)} that the model does not use")


def first_names(names: Sequence[str]) -> str:
    """Return the first few names as a text, and how many there are."""
    shown = ", ".join(names[:_SHOWN])
    more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
    return f"{shown}{more}"


def _cover(sizes: list[int], spans: list[slice]) -> tuple[slice, list[int], list[slice]]:
    """Return the shortest slice of a group's joint axis that contains a slice of each of its axes.

    Args:
        sizes, spans: the sizes and slices of the axes in the group, the last changing fastest.

    Returns:
        The slice, the sizes of the axes in it, and the wanted slices within these.
    """
    widths = [span.stop - span.start for span in spans]
    first = next((n for n, width in enumerate(widths) if width != 1), len(widths) - 1)
    steps = [math.prod(sizes[n + 1 :]) for n in range(first + 1)]
    start = sum(span.start * step for span, step in zip(spans, steps, strict=False))
    read_shape = [*widths[: first + 1], *sizes[first + 1 :]]
    within = [*(slice(0, width) for width in widths[: first + 1]), *spans[first + 1 :]]
    return slice(start, start + widths[first] * steps[first]), read_shape, within


def assemble(
    shape: Shape,
    index: Index,
    parts: Iterable[Piece],
    read: Callable[[str, Index], np.ndarray],
    *,
    dtype: np.dtype,
) -> np.ndarray:
    """Read a part of a parameter from its tensors, with a part of one tensor at a time in memory.

    Args:
        shape: the shape of the whole parameter.
        index: the part to read, with a start and a stop on each axis.
        parts: the pieces of the parameter.
        read: returns the part of the tensor with a name at an index.
        dtype: the dtype of the result.
    """
    array = np.empty([span.stop - span.start for span in index], dtype)
    for piece in parts:
        stack = len(piece.index)
        inside = zip(piece.index, index[:stack], strict=True)
        if all(span.start <= position < span.stop for position, span in inside):
            read_tensor = functools.partial(read, piece.tensor)
            rest = index[stack:]
            layout = piece.layout
            part = layout.read(read_tensor, shape[stack:], rest) if layout else read_tensor(rest)
            array[tuple(n - s.start for n, s in zip(piece.index, index, strict=False))] = part
    return array


def disassemble(
    arrays: Mapping[str, Any],
    parts: Mapping[str, list[Piece]],
    *,
    copy: Callable[[Any, Shape, np.ndarray], None] | None = None,
) -> Iterator[Tensor]:
    """Yield the tensors of all parameters, each computed when it is loaded: undoes `assemble`.

    Args:
        arrays: {path: parameter}.
        parts: {path: pieces of the parameter}.
        copy: copies the part of a parameter at indices of its first axes into an array; None for
            NumPy arrays.
    """
    by_tensor: dict[str, list[tuple[str, Piece]]] = {}
    for path, pieces in parts.items():
        for piece in pieces:
            by_tensor.setdefault(piece.tensor, []).append((path, piece))

    def load(held: list[tuple[str, Piece]]) -> np.ndarray:
        path, piece = held[0]
        tensor = np.zeros(piece.tensor_shape, arrays[path].dtype)
        for path, piece in held:
            shape = arrays[path].shape[len(piece.index) :]
            view = piece.layout.place(tensor, shape) if piece.layout else tensor
            if copy is None:
                view[...] = arrays[path][piece.index]
            else:
                copy(arrays[path], piece.index, view)
        return tensor

    for name, held in by_tensor.items():
        path, piece = held[0]
        yield Tensor(
            name, piece.tensor_shape, arrays[path].dtype, load=functools.partial(load, held)
        )


def dense(ours: str, theirs: str) -> WeightMap:
    """Map a dense layer with a bias."""
    return {
        f"{ours}/kernel": (f"{theirs}.weight", "O I -> I O"),
        f"{ours}/bias": f"{theirs}.bias",
    }


def norm(ours: str, theirs: str) -> WeightMap:
    """Map the scale and bias of a layer norm."""
    return {f"{ours}/scale": f"{theirs}.weight", f"{ours}/bias": f"{theirs}.bias"}


def attention(ours: str, query: str, key: str, value: str, out: str) -> WeightMap:
    """Map an attention layer with biases, from the names of its four dense layers."""
    weights: dict[str, str | tuple[str, str]] = {}
    for name, theirs in {"query": query, "key": key, "value": value}.items():
        weights[f"{ours}/{name}/kernel"] = (f"{theirs}.weight", "(H K) D -> D H K")
        weights[f"{ours}/{name}/bias"] = (f"{theirs}.bias", "(H K) -> H K")
    weights[f"{ours}/out/kernel"] = (f"{out}.weight", "D (H K) -> H K D")
    weights[f"{ours}/out/bias"] = f"{out}.bias"
    return weights


def bert_encoder(prefix: str) -> WeightMap:
    """Map BERT's embeddings and layers; tensor names begin with `prefix` ("bert", "roberta")."""
    layer = f"{prefix}.encoder.layer.{{layer}}"
    sublayer, block = f"{layer}.attention", "encoder/layers/{layer}"
    return {
        "embeddings/token/embedding": f"{prefix}.embeddings.word_embeddings.weight",
        "embeddings/position/embedding": f"{prefix}.embeddings.position_embeddings.weight",
        "embeddings/token_type/embedding": f"{prefix}.embeddings.token_type_embeddings.weight",
        **norm("embeddings/norm", f"{prefix}.embeddings.LayerNorm"),
        **attention(
            f"{block}/self_attention",
            f"{sublayer}.self.query",
            f"{sublayer}.self.key",
            f"{sublayer}.self.value",
            f"{sublayer}.output.dense",
        ),
        **norm(f"{block}/self_attention_norm", f"{sublayer}.output.LayerNorm"),
        **dense(f"{block}/feed_forward/wi", f"{layer}.intermediate.dense"),
        **dense(f"{block}/feed_forward/wo", f"{layer}.output.dense"),
        **norm(f"{block}/feed_forward_norm", f"{layer}.output.LayerNorm"),
    }
