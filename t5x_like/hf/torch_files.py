"""Read the tensors of PyTorch's files, `pytorch_model.bin`, without PyTorch and its pickles' code.

`torch.save` writes pickles, which can run any program when they are read. The reader here only
accepts dictionaries, numbers and tensors, like `torch.load(weights_only=True)`. It knows both
formats of PyTorch: a zip file with `data.pkl` and a member for each storage (since PyTorch 1.6),
and before it pickles followed by the storages (torch/serialization.py, `_save` and `_legacy_save`).
"""

import collections
import dataclasses
import math
import mmap
import pathlib
import pickle
import zipfile
from collections.abc import Sequence
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from t5x_like.hf.weight_map import Index

_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of the older format
_DTYPES = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}
_LOCAL_HEADER = 30  # bytes of the header before a member of a zip file, without its name


@dataclasses.dataclass(frozen=True)
class _Storage:
    """A one-dimensional array in the file: `size` elements."""

    key: str
    dtype: np.dtype[Any]
    size: int


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A view of a storage; the offset and the strides are in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def fits(self) -> bool:
        """Return whether the view lies inside its storage, without repeating all of it."""
        if min([self.offset, *self.shape, *self.strides]) < 0:
            return False
        last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        count = math.prod(self.shape)
        return count <= self.storage.size and (not count or self.offset + last < self.storage.size)


class TorchFile:
    """The tensors of a state dict that `torch.save` wrote, mapped into memory.

    Raises:
        ValueError: the file is damaged, holds other objects than tensors, or is big-endian.
    """

    def __init__(self, path: pathlib.Path):
        self._path = path
        read = _read_zip if zipfile.is_zipfile(path) else _read_legacy
        try:
            with path.open("rb") as file:
                state, self._starts = read(file)
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._tensors = {name: x for name, x in state.items() if isinstance(x, _Tensor)}
            outside = [name for name, tensor in self._tensors.items() if not self._has(tensor)]
        except _UnknownObjectError as error:
            raise ValueError(f"{path} has {error}, and only tensors are read") from error
        except Exception as error:  # a damaged pickle can raise anything
            raise ValueError(f"{path} is damaged, or not a file of PyTorch: {error}") from error
        if outside:
            raise ValueError(f"{path} is damaged or incomplete: it lacks data of {outside[0]}")

    @property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self._tensors[name].shape

    def dtype(self, name: str) -> str:
        """Return the name of a tensor's dtype, as NumPy has it."""
        return self._tensors[name].storage.dtype.name

    def read(self, name: str, index: Index | None = None) -> np.ndarray:
        """Read a tensor, or its part at an index."""
        tensor = self._tensors[name]
        storage = tensor.storage
        flat = np.frombuffer(
            self._bytes, storage.dtype, storage.size, offset=self._starts[storage.key]
        )
        strides = [step * storage.dtype.itemsize for step in tensor.strides]
        view = np.lib.stride_tricks.as_strided(
            flat[tensor.offset :], tensor.shape, strides, writeable=False
        )
        return np.array(view[index] if index else view, order="C")

    def _has(self, tensor: _Tensor) -> bool:
        storage = tensor.storage
        start = self._starts.get(storage.key, len(self._bytes))
        end = start + storage.size * storage.dtype.itemsize
        return tensor.fits() and end <= len(self._bytes)


class _UnknownObjectError(Exception):
    """A pickle names a class or function that the reader does not know."""


class _Unpickler(pickle.Unpickler):
    """Read tensors as `_Tensor`; every other class or function is an error."""

    def __init__(self, file: Any):
        super().__init__(file)
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch" and name in _DTYPES:
            return name
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _parameter
        raise _UnknownObjectError(f"an object of {module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, size, *view = pid  # the fourth is the device
        if kind != "storage" or any(view):
            raise _UnknownObjectError(f"an object of the kind {kind!r}")
        return self.storages.setdefault(key, _Storage(key, _DTYPES[dtype], int(size)))


def _tensor(
    storage: _Storage, offset: int, shape: Sequence[int], strides: Sequence[int], *_: Any
) -> _Tensor:
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


def _read_zip(file: BinaryIO) -> tuple[Any, dict[str, int]]:
    """Return the unpickled object, and where in the file each storage starts."""
    with zipfile.ZipFile(file) as archive:
        (top,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        within = top.removesuffix("data.pkl")
        if f"{within}byteorder" in archive.namelist():
            order = archive.read(f"{within}byteorder")
            if order != b"little":
                raise ValueError(f"its byte order is {order.decode()}")
        with archive.open(top) as member:
            state = _Unpickler(member).load()
        before = f"{within}data/"
        members = [member for member in archive.infolist() if member.filename.startswith(before)]
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("its storages are compressed")
    return state, {member.filename.removeprefix(before): _start(file, member) for member in members}


def _start(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Return where the bytes of a member of a zip file start, after its name and padding."""
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER)
    name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    return member.header_offset + _LOCAL_HEADER + name + extra


def _read_legacy(file: BinaryIO) -> tuple[Any, dict[str, int]]:
    """Return the unpickled object, and where in the file each storage starts."""
    if _Unpickler(file).load() != _MAGIC:
        raise ValueError("it does not begin as such a file does")
    _Unpickler(file).load()  # the version of the format
    system = _Unpickler(file).load()
    if not system["little_endian"]:
        raise ValueError("its byte order is big")
    unpickler = _Unpickler(file)
    state = unpickler.load()
    keys = _Unpickler(file).load()
    starts, at = {}, file.tell()
    for key in keys:  # each storage has its number of elements, in 8 bytes, before them
        storage = unpickler.storages[key]
        starts[key] = at + 8
        at = starts[key] + storage.size * storage.dtype.itemsize
    return state, starts
