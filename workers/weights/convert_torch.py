"""Tensors out of files of torch.save, without torch and without running what is in them.

Such a file is a zip: a pickle that says how tensors lie in its other members. A pickle may name any code of this
machine; here it gets four names and no others, none of which does anything but describe a tensor
(https://docs.pytorch.org/docs/stable/notes/serialization.html).
"""

import collections
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from workers.weights.files import Damaged

# torch's storages → how many bytes a number has, and what safetensors calls it
_KINDS = {
    "DoubleStorage": (8, "F64"),
    "FloatStorage": (4, "F32"),
    "HalfStorage": (2, "F16"),
    "BFloat16Storage": (2, "BF16"),
    "LongStorage": (8, "I64"),
    "IntStorage": (4, "I32"),
    "ShortStorage": (2, "I16"),
    "CharStorage": (1, "I8"),
    "ByteStorage": (1, "U8"),
    "BoolStorage": (1, "BOOL"),
}
_LARGEST_PICKLE = 64 << 20
_BYTES = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}  # numbers are carried, not read


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """`values` holds the numbers' bytes, as unsigned integers of their size; `dtype` is safetensors' name."""

    values: np.ndarray
    dtype: str


def convert(source: Path, target: Path) -> None:
    """Write the tensors of a state dict as a safetensors file. Raises Damaged for anything else, and OSError."""
    write(read(source), target)


def read(source: Path) -> Mapping[str, Tensor]:
    """By name, mapped from the file and not yet in memory. Raises Damaged and OSError."""
    try:
        with zipfile.ZipFile(source) as archive:
            found = _Archive(source, archive).load()
    except (zipfile.BadZipFile, pickle.UnpicklingError, EOFError, KeyError, ValueError, TypeError, IndexError) as error:
        what = str(error) if isinstance(error, Damaged) else f"{source.name} is not a file of torch.save that is known"
        raise Damaged(what) from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in found.items()
    ):
        raise Damaged(f"{source.name} holds something else than tensors by name")
    return found


def write(tensors: Mapping[str, Tensor], target: Path) -> None:
    """One tensor after the other, so that memory holds one at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.values.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.values.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with target.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor.values).data)


class _Archive:
    """One file being read."""

    def __init__(self, source: Path, archive: zipfile.ZipFile) -> None:
        self._source = source
        self._archive = archive
        [described] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        self._root = described.removesuffix("data.pkl")
        order = f"{self._root}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise Damaged(f"{source.name} was written on a big-endian machine")

    def load(self) -> Any:
        info = self._archive.getinfo(f"{self._root}data.pkl")
        if info.file_size > _LARGEST_PICKLE:
            raise Damaged(f"{self._source.name} describes its tensors in {info.file_size} bytes")
        with self._archive.open(info) as file:
            return _Unpickler(file, self._storage).load()

    def _storage(self, kind: _Kind, key: str, count: int) -> tuple[np.ndarray, str]:
        """The numbers of one member, mapped: torch stores them uncompressed, at 64 bytes."""
        size, dtype = _KINDS[kind.name]
        info = self._archive.getinfo(f"{self._root}data/{key}")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != count * size:
            raise Damaged(f"{self._source.name} stores {key} in an unknown way")
        with self._source.open("rb") as file:
            file.seek(info.header_offset)
            names = struct.unpack("<HH", file.read(30)[26:30])
        if not count:
            return np.zeros(0, _BYTES[size]), dtype
        start = info.header_offset + 30 + sum(names)
        return np.memmap(self._source, _BYTES[size], "r", start, (count,)), dtype


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO | Any, storage: Callable[[_Kind, str, int], tuple[np.ndarray, str]]) -> None:
        super().__init__(file, encoding="utf-8")
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _parameter
        if module == "torch" and name in _KINDS:
            return _Kind(name)
        raise Damaged("it names code, which is not run")

    def persistent_load(self, found: Any) -> tuple[np.ndarray, str]:
        tag, kind, key, _, count = found
        if tag != "storage" or not isinstance(kind, _Kind) or not isinstance(key, str) or not isinstance(count, int):
            raise Damaged("it refers to something else than numbers")
        return self._storage(kind, key, count)


def _tensor(
    storage: tuple[np.ndarray, str],
    offset: int,
    shape: Sequence[int],
    strides: Sequence[int],
    requires_grad: bool,
    hooks: Any,
    metadata: Any = None,
) -> Tensor:
    values, dtype = storage
    count = reduce(mul, shape, 1)
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    inside = offset >= 0 and count <= len(values) and min((0, *shape, *strides)) == 0
    if not inside or (count and last >= len(values)):
        raise Damaged("it describes a tensor outside its numbers")
    if not count:
        return Tensor(np.zeros(tuple(shape), values.dtype), dtype)
    steps = tuple(stride * values.itemsize for stride in strides)
    return Tensor(np.lib.stride_tricks.as_strided(values[offset:], tuple(shape), steps, writeable=False), dtype)


def _parameter(tensor: Tensor, requires_grad: bool, hooks: Any) -> Tensor:
    return tensor
