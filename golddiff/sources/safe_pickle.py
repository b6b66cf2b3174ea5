"""Reading pickles of plain data and arrays without running what they ask for."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from golddiff.errors import SourceError

try:
    from numpy._core.multiarray import _reconstruct
except ImportError:  # NumPy 1 keeps it elsewhere
    from numpy.core.multiarray import _reconstruct  # type: ignore[no-redef]


class _Latin1:
    """Stands in for ``_codecs.encode``, by which Python 3 writes bytes in old pickle protocols."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1" or not isinstance(text, str):
            raise pickle.UnpicklingError(f"asks for the encoding {encoding!r}")
        return text.encode("latin1")


# All that arrays, bytes, strings, dicts, lists and numbers need. Both of NumPy's module names
# occur, the old one in every file that is in circulation.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _Latin1(),
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"asks for {module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("asks for an object kept outside the file")


def load_plain(data: bytes, name: str) -> Any:
    """Unpickle arrays, bytes, strings, dicts, lists and numbers, and nothing else.

    Args:
        data: the pickle, of any protocol; strings of Python 2 come back as bytes.
        name: the file's name, for messages.

    Raises:
        SourceError: the pickle is damaged, or asks for anything else (which is not run).
    """
    try:
        return _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:
        # A damaged pickle raises nearly anything, as it drives constructors with wrong values.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(
            f"{name} is not a pickle of plain arrays: it {reason}"
            if reason.startswith("asks for")
            else f"{name} is not a readable pickle: {reason}"
        ) from error
