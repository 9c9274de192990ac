"""Layouts are exact and invertible; a map finds every tensor of every kind of parameter tree."""

import numpy as np
import pytest

from t5x_like.hf.weight_map import (
    AxisLayout,
    assemble,
    canonical_names,
    check_names,
    disassemble,
    pieces,
)

WEIGHTS = {
    "embedder/embedding": "words.weight",
    "layers/{layer}/query/kernel": ("block.{layer}.q.weight", "(H K) D -> D H K"),
    "layers/{layer}/experts/kernel": ("block.{layer}.expert.{expert}.weight", "F D -> D F"),
}


def everything(shape):
    """The index of a whole array."""
    return tuple(slice(0, size) for size in shape)


def fill(shapes):
    """Arrays in which no two numbers are equal."""
    sizes = np.cumsum([0, *(np.prod(shape) for shape in shapes.values())])
    return {
        path: np.arange(start, start + np.prod(shape), dtype=np.float32).reshape(shape)
        for (path, shape), start in zip(shapes.items(), sizes, strict=False)
    }


def test_a_layout_moves_each_number_to_its_place():
    heads, width, features = 2, 3, 5
    tensor = np.arange(heads * width * features).reshape(heads * width, features)
    shape = (features, heads, width)
    layout = AxisLayout.parse("(H K) D -> D H K")
    ours = layout.read(tensor.__getitem__, shape, everything(shape))
    for h in range(heads):
        for k in range(width):
            assert (ours[:, h, k] == tensor[h * width + k]).all()


@pytest.mark.parametrize(
    "pattern", ["(H K) D -> D H K", "D (H K) -> H K D", "A B -> B A", "A -> A"]
)
def test_a_layout_is_undone_exactly(pattern):
    layout = AxisLayout.parse(pattern)
    shape = (2, 3, 5)[: len(layout.ours)]
    array = np.random.default_rng(0).normal(size=shape)
    tensor = np.empty(layout.their_shape(shape))
    layout.place(tensor, shape)[...] = array
    found = layout.read(tensor.__getitem__, shape, everything(shape))
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        ("(H K) D -> D H K", 1),
        ("D (H K) -> H K D", 1),
        ("(1/3 H K) D -> D H K", 1),
        ("D (1/3 H K) -> D H K", 1),
        ("(H 1/3 K) D -> D H K", 3),  # what lies between two heads is read too
        ("2+H K -> H K", 1),
        ("B A -> A B", 1),
    ],
)
def test_a_part_of_a_parameter_is_read_from_a_part_of_the_tensor(pattern, most):
    layout = AxisLayout.parse(pattern)
    shape = (8, 4, 6)[: len(layout.ours)]
    tensor = np.arange(np.prod(layout.their_shape(shape))).reshape(layout.their_shape(shape))
    whole = layout.read(tensor.__getitem__, shape, everything(shape))
    for axis, size in enumerate(shape):
        if layout.ours[axis] == "K":
            continue  # the width of a head is on one device
        read = []

        def there(index, read=read):
            read.append(tensor[index].size)
            return tensor[index]

        index = list(everything(shape))
        index[axis] = slice(size // 2, size)
        part = layout.read(there, shape, tuple(index))
        np.testing.assert_array_equal(part, whole[tuple(index)])
        assert read[0] <= most * part.size


def test_parts_of_one_tensor_are_parameters_of_their_own():
    names = ("query", "key", "value")
    weights = {name: ("attention", f"D ({n}/3 H K) -> D H K") for n, name in enumerate(names)}
    arrays = fill(dict.fromkeys(names, (5, 2, 3)))
    found = pieces(weights, {name: array.shape for name, array in arrays.items()})
    (tensor,) = disassemble(arrays, found)
    assert (tensor.name, tensor.size) == ("attention", 3 * 5 * 6 * 4)
    whole = tensor.load()
    flat = [arrays[name].reshape(5, 6) for name in names]
    np.testing.assert_array_equal(whole, np.concatenate(flat, axis=1))
    for name, array in arrays.items():
        again = assemble(
            array.shape,
            everything(array.shape),
            found[name],
            lambda _, index: whole[index],
            dtype=array.dtype,
        )
        np.testing.assert_array_equal(again, array)


@pytest.mark.parametrize("pattern", ["A B", "A B -> A", "A -> A A", "(A B -> C A"])
def test_a_layout_that_loses_an_axis_is_refused(pattern):
    with pytest.raises(ValueError, match="the same axes"):
        AxisLayout.parse(pattern)


@pytest.mark.parametrize(
    "shapes",
    [
        {"layers/block/query/kernel": (3, 5, 2, 4), "layers/block/experts/kernel": (3, 6, 5, 7)},
        {f"layers/layer_{n}/query/kernel": (5, 2, 4) for n in range(12)}
        | {f"layers/layer_{n}/experts/kernel": (6, 5, 7) for n in range(12)},
    ],
    ids=["scanned", "looped"],
)
def test_arrays_go_out_and_come_back_the_same(shapes):
    arrays = fill(shapes | {"embedder/embedding": (11, 5)})
    parts = pieces(WEIGHTS, {path: array.shape for path, array in arrays.items()})
    tensors = {tensor.name: tensor.load() for tensor in disassemble(arrays, parts)}
    assert tensors["block.2.q.weight"].shape == (8, 5)
    assert tensors["block.2.expert.5.weight"].shape == (7, 5)
    for path, array in arrays.items():
        for index in (
            everything(array.shape),
            tuple(slice(size // 3, size - size // 4) for size in array.shape),
        ):
            back = assemble(
                array.shape,
                index,
                parts[path],
                lambda name, part: tensors[name][part],
                dtype=array.dtype,
            )
            np.testing.assert_array_equal(back, array[index])


def test_scanned_and_looped_layers_are_the_same_tensors():
    looped = fill({f"layers/layer_{n}/query/kernel": (5, 2, 4) for n in range(3)})
    scanned = {"layers/block/query/kernel": np.stack(list(looped.values()))}
    one, other = (
        {
            tensor.name: tensor.load()
            for tensor in disassemble(
                arrays, pieces(WEIGHTS, {p: a.shape for p, a in arrays.items()})
            )
        }
        for arrays in (looped, scanned)
    )
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        np.testing.assert_array_equal(tensor, other[name])


@pytest.mark.parametrize("loop", ["scan", "unroll"])
def test_a_group_of_layers_is_numbered_as_the_layers_are(loop):
    weights = {
        f"layers/{{layer}}/block_{n}/kernel": (f"block.{{2*layer+{n}}}.{{expert}}.w", "F D -> D F")
        for n in (0, 1)
    }
    stacked = {f"layers/block/block_{n}/kernel": (6, 2, 5, 7) for n in (0, 1)}
    apart = {
        f"layers/layer_{layer}/block_{n}/kernel": (2, 5, 7) for layer in range(6) for n in (0, 1)
    }
    arrays = fill(stacked if loop == "scan" else apart)
    found = pieces(weights, {path: array.shape for path, array in arrays.items()})
    tensors = {tensor.name: tensor.load() for tensor in disassemble(arrays, found)}
    assert sorted(tensors) == sorted(f"block.{n}.{e}.w" for n in range(12) for e in (0, 1))
    eleventh = (
        arrays["layers/block/block_0/kernel"][5]
        if loop == "scan"
        else arrays["layers/layer_5/block_0/kernel"]
    )
    np.testing.assert_array_equal(tensors["block.10.1.w"], eleventh[1].T)


def test_a_parameter_that_the_map_lacks_is_named():
    with pytest.raises(ValueError, match="layers/block/bias has 0 lines"):
        pieces(WEIGHTS, {"layers/block/bias": (3, 5)})


def test_older_names_and_copies_count_as_the_names_in_the_map():
    names = ["norm.gamma", "words.weight", "copy.weight", "head.weight", "layer.0.bias"]
    aliases = {"*.gamma": "*.weight", "copy.weight": "words.weight", "head.weight": "words.weight"}
    aliases |= {"layer.*": "model.layer.*"}
    assert canonical_names(names, aliases, wanted={"head.weight", "words.weight"}) == {
        "norm.weight": ["norm.gamma"],
        "words.weight": ["words.weight", "copy.weight"],
        "head.weight": ["head.weight"],
        "model.layer.0.bias": ["layer.0.bias"],
    }


def test_the_first_missing_and_unused_tensors_are_named():
    wanted = [f"encoder.block.{n}.weight" for n in range(5)]
    with pytest.raises(
        ValueError, match=r"block\.3\.weight, encoder\.block\.4\.weight that"
    ) as caught:
        check_names(wanted, [*wanted[:3], "encoder.block.3.wieght"], where="here")
    assert "it also has encoder.block.3.wieght" in str(caught.value)
    assert "Did you mean 'encoder.block.3.wieght'?" in str(caught.value)
    with pytest.raises(
        ValueError, match=r"b.0, b.1, b.2, ... \(9 in all\) that the model does not"
    ):
        check_names(wanted, [*wanted, *(f"b.{n}" for n in range(9))], where="here")
