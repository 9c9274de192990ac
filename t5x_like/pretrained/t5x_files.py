"""The files of T5X's checkpoints: a tree in msgpack, with large arrays in folders of TensorStore.

A checkpoint is a folder with a file `checkpoint`, the tree of the train state. A leaf is an array,
or refers to an array: by the TensorStore specification of a zarr array in a folder beside the file,
or by Orbax's string PLACEHOLDER://NAME, which names such a folder or an array in an OCDBT database.
"""

import contextlib
import functools
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import flax.serialization
import flax.traverse_util
import numpy as np
import tensorstore

from t5x_like.hf.weight_map import Index, Tensor

FILE = "checkpoint"
VERSION = 3  # since June 2021: bfloat16 arrays are stored in bfloat16
_PLACEHOLDER = "PLACEHOLDER://"
_FACTORS = ("/v_row", "/v_col")
_SPECIFICATION = {"driver", "kvstore"}


class StoredArrays:
    """The arrays of a checkpoint by path, "encoder/layers_0/mlp/wi/kernel", read on request.

    Args:
        folder: the folder of the checkpoint.
        part: "target" for the parameters, or "state" for the optimizer's state: "step" and
            "param_states/...".

    Attributes:
        empty: the paths of leaves without a value, such as the optimizer's state of a parameter
            that is not trained.

    Raises:
        ValueError: the file is damaged, or has no such part.
    """

    def __init__(self, folder: pathlib.Path, *, part: str = "target"):
        self.folder = folder
        tree = _read_tree(folder / FILE)
        subtree = tree.get("optimizer", tree).get(part)
        if part == "target" and subtree is None:
            subtree = tree.get("params")
        if not isinstance(subtree, Mapping):
            what = {"target": "parameters", "state": "optimizer state"}[part]
            raise ValueError(
                f"{folder / FILE} has no {what}: neither optimizer.{part} nor {part} is there"
            )
        leaves = flax.traverse_util.flatten_dict(
            dict(subtree), sep="/", is_leaf=lambda _, node: node.keys() >= _SPECIFICATION
        )
        self._leaves = {name: leaf for name, leaf in leaves.items() if leaf is not None}
        self.empty = leaves.keys() - self._leaves.keys()
        self._opened = functools.cache(self._open)

    @property
    def names(self) -> list[str]:
        """The paths of the arrays."""
        return list(self._leaves)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array, without reading it."""
        return tuple(self._opened(name).shape)

    def dtype(self, name: str) -> np.dtype:
        """Return the dtype of an array, without reading it."""
        opened = self._opened(name)
        return opened.dtype if isinstance(opened, np.ndarray) else opened.dtype.numpy_dtype

    def read(self, name: str, index: Index) -> np.ndarray:
        """Read the part of an array at an index.

        Raises:
            ValueError: its files are missing or damaged.
        """
        array = self._opened(name)[index]
        if isinstance(array, np.ndarray | np.generic):
            return np.asarray(array)
        with _naming(self.folder, name):
            return array.read().result()

    def _open(self, name: str) -> Any:
        leaf = self._leaves[name]
        if isinstance(leaf, np.ndarray | np.generic):
            return np.asarray(leaf)
        with _naming(self.folder, name):
            return tensorstore.open(self._specification(name, leaf), open=True).result()

    def _specification(self, name: str, leaf: Any) -> dict[str, Any]:
        """Return TensorStore's specification of an array, moved to this folder."""
        if isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER):
            array_folder = leaf.removeprefix(_PLACEHOLDER)
        elif isinstance(leaf, Mapping) and leaf.keys() >= _SPECIFICATION:
            if leaf["driver"] != "zarr":
                raise ValueError(f"driver={leaf['driver']!r} is not supported; 'zarr' is")
            array_folder = leaf["kvstore"].get("path") or leaf.get("path", "")
        else:
            raise ValueError(f"it is neither an array nor the place of one: {leaf!r}"[:200])
        array_folder = pathlib.PurePosixPath(array_folder).name
        store: dict[str, Any] = {"driver": "file", "path": str(self.folder / array_folder)}
        if not (self.folder / array_folder).is_dir() and (self.folder / "manifest.ocdbt").is_file():
            base = f"file://{self.folder.resolve()}"
            store = {"driver": "ocdbt", "base": base, "path": array_folder}
        # Otherwise a chunk whose file is missing would be read as zeros.
        return {"driver": "zarr", "kvstore": store, "fill_missing_data_reads": False}


@contextlib.contextmanager
def _naming(folder: pathlib.Path, name: str) -> Iterator[None]:
    """Shorten TensorStore's errors to one line, and name the array in them."""
    try:
        yield
    except ValueError as error:
        reason = str(error).partition(" [tensorstore_spec")[0].replace("\n", " ")
        raise ValueError(f"{folder}: the parameter {name} cannot be read: {reason}") from error


def _read_tree(path: pathlib.Path) -> dict[str, Any]:
    data = path.read_bytes()
    if data.startswith(b"model_checkpoint_path"):
        raise ValueError(
            f"{path} belongs to a checkpoint of TensorFlow; T5X's are in msgpack (the T5X project "
            "converted the models of that time)"
        )
    try:
        tree = flax.serialization.msgpack_restore(data)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged or incomplete: {error}") from error
    except Exception as error:  # msgpack's errors share no narrower base class
        if type(error).__module__.partition(".")[0] != "msgpack":
            raise
        raise ValueError(f"{path} is damaged or incomplete: {error!r}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{path} holds a {type(tree).__name__}, and no tree of parameters")
    return tree


def write(
    folder: pathlib.Path,
    tensors: Iterable[Tensor],
    *,
    step: int,
    states: Iterable[Tensor] = (),
) -> None:
    """Write parameters and an optimizer's state as a T5X checkpoint, one array after the other.

    Matrices are written to folders of TensorStore, vectors and scalars into the file. So are the
    factors of Adafactor's moments: T5X does not partition them, and reads them only from the file.

    Args:
        folder: an empty folder.
        tensors: the parameters, whose names are their paths.
        step: the number of steps taken.
        states: the arrays of the optimizer's state, "param_states/..."; empty to leave it out.
    """
    target = _write_arrays(folder, "target", tensors)
    state = {**_write_arrays(folder, "state", states), "step": np.int32(step)}
    tree = {"version": VERSION, "optimizer": {"target": target, "state": state}}
    # The file is written last: a folder without it is not a checkpoint.
    (folder / FILE).write_bytes(flax.serialization.msgpack_serialize(tree))


def _write_arrays(folder: pathlib.Path, part: str, tensors: Iterable[Tensor]) -> dict[str, Any]:
    """Write the matrices of a part of the tree to folders, and return the part with its leaves."""
    leaves: dict[str, Any] = {}
    for tensor in tensors:
        if len(tensor.shape) < 2 or tensor.name.endswith(_FACTORS):
            leaves[tensor.name] = tensor.load()
            continue
        array_folder = f"{part}.{tensor.name.replace('/', '.')}"
        specification = {
            "driver": "zarr",
            "kvstore": {"driver": "file", "path": str(folder / array_folder)},
            "dtype": tensor.dtype.name,
            "metadata": {"shape": [*tensor.shape], "compressor": {"id": "gzip"}},
        }
        opened = tensorstore.open(specification, create=True).result()
        opened.write(tensor.load()).result()
        # Not the minimal one: T5X takes a mapping without `metadata` for a part of the tree.
        stored = opened.spec().to_json()
        stored.pop("transform", None)
        leaves[tensor.name] = {**stored, "kvstore": {"driver": "file", "path": f"{array_folder}/"}}
    return flax.traverse_util.unflatten_dict(leaves, sep="/")
