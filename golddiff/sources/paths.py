"""Files and folders: which reader a path calls for."""

from __future__ import annotations

from pathlib import Path

from golddiff.errors import SourceError
from golddiff.sources.archives import open_zip
from golddiff.sources.base import Source
from golddiff.sources.cifar import open_cifar_tar
from golddiff.sources.decode import EXTENSIONS
from golddiff.sources.folders import open_folder
from golddiff.sources.idx import is_idx, open_idx
from golddiff.sources.numpy_files import open_npy, open_npz
from golddiff.sources.options import Options
from golddiff.sources.stores import StoreSource, is_store
from golddiff.sources.tables import open_parquet

_TAR = (".tar", ".tar.gz", ".tgz")
_KNOWN = "a folder, .parquet, .zip, .npz, .npy, idx files (.gz) or CIFAR's .tar.gz"


def looks_like_path(text: str) -> bool:
    """Whether a text can only be meant as a path, and not as the name of a dataset."""
    endings = (".parquet", ".zip", ".npz", ".npy", ".gz", *_TAR, *EXTENSIONS)
    return text.startswith(("/", "\\", ".", "~")) or text.lower().endswith(endings)


def open_path(path: Path, options: Options) -> Source:
    """Open a file or folder that exists.

    Raises:
        SourceError: it is of no kind that can be read, or is damaged.
    """
    if path.is_dir():
        return StoreSource(path, options) if is_store(path) else open_folder(path, options)
    if not path.is_file():
        raise SourceError(f"{path} is neither a file nor a folder")
    name = path.name.lower()
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    if name.endswith(".parquet"):
        return open_parquet([path], options, f"parquet {path.name}")
    if name.endswith(".zip"):
        return open_zip(path, options)
    if name.endswith(".npz"):
        return open_npz(path, options)
    if name.endswith(".npy"):
        return open_npy(path, options)
    if name.endswith(_TAR):
        return open_cifar_tar(path, options)
    if is_idx(path) or "idx3-ubyte" in name:
        return open_idx(path, options)
    if path.suffix.lower() in EXTENSIONS:
        raise SourceError(f"{path} is a single image; give the folder it is in")
    raise SourceError(f"{path} is of no known kind; give {_KNOWN}")
