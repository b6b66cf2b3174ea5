"""Safe reader of ``torch.save`` files: tensors and plain values only, without running code.

torch writes one of two formats. The first is a zip archive with ``data.pkl`` and one member per
storage. The second, used until 2020 and inside EDM's pickles, is five pickles in a row (magic
number, version, word sizes, values, storage names) followed by the bytes of the storages.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import torch

from golddiff.system.errors import CheckpointError
from golddiff.system.files import check_unpacked, readable
from golddiff.system.pickles import ARRAYS, read_pickle

ZIP = b"PK\x03\x04"
MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001


class Storage:
    """A CPU buffer of one dtype, which a pickle can hold but not alter.

    Built from a persistent id: the word "storage", dtype, key, device and number of values.
    """

    def __init__(self, identifier: Any) -> None:
        if type(identifier) is not tuple or len(identifier) not in (5, 6):
            raise UnpicklingError("it asks for a storage of another form")
        word, self.dtype, self.key, _, self.count, *view = identifier
        fits = word == "storage" and isinstance(self.dtype, torch.dtype) and view in ([], [None])
        if not fits or type(self.key) is not str or type(self.count) is not int or self.count < 0:
            raise UnpicklingError("it asks for a storage of another form")

    def allocate(self, most: int) -> None:
        """Allocate ``values`` (count,); raises if they take more than ``most`` bytes."""
        size = self.count * self.dtype.itemsize
        self.check(min(size, most))
        self._bytes = torch.empty(size, dtype=torch.uint8, device="cpu")
        self.values = self._bytes.view(self.dtype)

    def fill(self, file: IO[bytes]) -> None:
        """Read the values from a file."""
        self.check(file.readinto(self._bytes.numpy()))  # type: ignore[attr-defined]

    def check(self, size: int) -> None:
        """Raise unless ``size`` is the storage's size in bytes."""
        if size != self.count * self.dtype.itemsize:
            present = size // self.dtype.itemsize
            raise UnpicklingError(
                f"it declares a storage of {self.count:,} numbers and holds {present:,}"
            )


@dataclass(frozen=True)
class OtherTensor:
    """Placeholder for a tensor of an unsupported kind, such as sparse."""

    kind: str


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> torch.Tensor:
    """``torch._utils._rebuild_tensor_v2``: a view of a storage, with a bounds check."""
    if not isinstance(storage, Storage):
        raise UnpicklingError(f"it has a tensor made of {type(storage).__name__}")
    alike = type(size) is type(stride) is tuple and len(size) == len(stride)
    if not alike or not all(type(n) is int and 0 <= n < 2**62 for n in (offset, *size, *stride)):
        raise UnpicklingError("it has a tensor of an impossible shape")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    # With a stride of 0, a few values could stand for a huge tensor.
    if 0 not in size and max(last + 1, math.prod(size)) > storage.count:
        raise UnpicklingError(f"it has a tensor of shape {size} beyond its {storage.count} numbers")
    values = storage.values
    return values.new_zeros(size) if 0 in size else values.as_strided(size, stride, offset)


def _parameter(data: Any, *rest: Any) -> torch.Tensor | OtherTensor:
    if not isinstance(data, torch.Tensor | OtherTensor):
        raise UnpicklingError(f"it has a parameter made of {type(data).__name__}")
    return data


def _other(kind: str) -> Callable[..., OtherTensor]:
    return lambda *args: OtherTensor(kind)


def _other_dtype(*args: Any) -> OtherTensor:
    """``_rebuild_tensor_v3``, which torch writes for dtypes that have no storage class."""
    return OtherTensor(next((str(a) for a in args if isinstance(a, torch.dtype)), "of no type"))


_DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16,
    "BFloat16": torch.bfloat16, "Long": torch.int64, "Int": torch.int32, "Short": torch.int16,
    "Char": torch.int8, "Byte": torch.uint8, "Bool": torch.bool,
    "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128,
    "QUInt8": torch.uint8, "QInt8": torch.int8, "QInt32": torch.int32,
}  # fmt: skip
# Values are read into CPU memory, whatever device they were saved from.
STORAGES: dict[tuple[str, str], Any] = {
    (module, f"{name}Storage"): dtype
    for module in ("torch", "torch.cuda")
    for name, dtype in _DTYPES.items()
} | {("torch.storage", "UntypedStorage"): torch.uint8}
TENSORS: dict[tuple[str, str], Any] = {
    **ARRAYS,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): lambda pairs=(): OrderedDict(pairs),
    ("torch._utils", "_rebuild_tensor_v3"): _other_dtype,
    ("torch._utils", "_rebuild_sparse_tensor"): _other("sparse"),
    ("torch._utils", "_rebuild_nested_tensor"): _other("nested"),
    ("torch._utils", "_rebuild_qtensor"): _other("quantised"),
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): _other("meta"),
    ("torch._utils", "_rebuild_wrapper_subclass"): _other("of another class"),
    ("torch._tensor", "_rebuild_from_type_v2"): _other("of another class"),
    ("torch.serialization", "_get_layout"): _other("a layout"),
    ("torch", "Size"): lambda sides=(): tuple(sides),
    **{
        ("torch", name): value
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype | torch.qscheme)
    },
}


def read_torch(path: Path) -> Any:
    """Read a file of ``torch.save`` in either format, with tensors on the CPU.

    Raises:
        CheckpointError: the file is unreadable, damaged, unpacks to far more than its size, or
            contains anything but tensors, arrays and plain values; the message names it.
    """
    problem = f"{path} is damaged or not a checkpoint of tensors and plain values"
    with readable(problem, CheckpointError), path.open("rb") as file:
        is_zip = file.peek(len(ZIP)).startswith(ZIP)
        return _read_zip(path, file) if is_zip else read_legacy(file)


def _read_zip(path: Path, file: IO[bytes]) -> Any:
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
        check_unpacked(str(path), path.stat().st_size, unpacked, CheckpointError)
        names = archive.namelist()
        roots = [name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")]
        if len(roots) != 1:
            raise UnpicklingError(f"it has {len(roots)} members named data.pkl")
        if f"{roots[0]}byteorder" in names and archive.read(f"{roots[0]}byteorder") != b"little":
            raise UnpicklingError("it is big-endian")
        storages: dict[str, Storage] = {}

        def storage(identifier: Any) -> Storage:
            new = Storage(identifier)
            if new.key not in storages:
                with archive.open(f"{roots[0]}data/{new.key}") as member:
                    new.check(size := archive.getinfo(member.name).file_size)
                    new.allocate(size)
                    new.fill(member)
                storages[new.key] = new
            return storages[new.key]

        return read_pickle(archive.read(f"{roots[0]}data.pkl"), STORAGES | TENSORS, storage)


def read_legacy(file: IO[bytes], names: dict[tuple[str, str], Any] = TENSORS) -> Any:
    """Read a file of consecutive pickles, which may use only the globals in ``names``.

    It has to end with the last storage.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    magic, version, words = (read_pickle(file, {}) for _ in range(3))
    if magic != MAGIC or version != VERSION or type(words) is not dict:
        raise UnpicklingError("it is of an unknown format")
    if words.get("little_endian") is not True:
        raise UnpicklingError("it is big-endian")
    storages: dict[str, Storage] = {}

    def storage(identifier: Any) -> Storage:
        new = Storage(identifier)
        if new.key not in storages:
            new.allocate(size)
            storages[new.key] = new
        return storages[new.key]

    values = read_pickle(file, STORAGES | names, storage)
    keys = read_pickle(file, {})
    if type(keys) is not list or sorted(keys) != sorted(storages):
        raise UnpicklingError("it does not hold the storages that it declares")
    for key in keys:
        (count,) = struct.unpack("<q", file.read(8))
        if count != storages[key].count:
            raise UnpicklingError("it holds a storage of another length than it declares")
        storages[key].fill(file)
    if file.read(1):
        raise UnpicklingError("it continues after its last storage")
    return values
