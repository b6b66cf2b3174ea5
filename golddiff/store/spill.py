"""Arrays that do not fit into memory: made in parts into a temporary file, and mapped."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from golddiff.system.errors import StoreError
from golddiff.system.residency import Residency
from golddiff.system.units import byte_size


def spilled(
    made: Iterable[NDArray[np.float32]],
    shape: tuple[int, int],
    folder: Path,
    residency: Residency,
) -> NDArray[np.float32]:
    """Parts of an array (n, d) as one that is mapped from a file, which goes with the process.

    Args:
        made: consecutive rows; not asked for before there is room for all.
        shape: of the whole.
        folder: where the file is to be, if it may be written to; else the system's temporary one.
        residency: where its pages count.

    Raises:
        StoreError: says how much room it takes.
    """
    folder = folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())
    size, free = 4 * math.prod(shape), shutil.disk_usage(folder).free
    if size > free:
        raise StoreError(
            f"store: an array of {shape[0]:,} x {shape[1]} numbers takes {byte_size(size)}, more "
            f"than the memory limit of {byte_size(int(residency.limit))} and than the "
            f"{byte_size(free)} free in {folder}; give ImageStore.open a larger memory_limit"
        )
    handle, name = tempfile.mkstemp(dir=folder, prefix=".golddiff-")
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in made:
                file.write(np.ascontiguousarray(part, np.float32).data)
        return residency.map(path, "float32", shape)
    except OSError as error:
        raise StoreError(f"store: {path} cannot be written ({error.strerror})") from error
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)  # the mapping keeps the data
