"""Readers of training images: arrays, folders, archives, tables, and a few built-in sets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golddiff.sources.source_options import DEFAULT_SPLIT, SPLIT, SourceOptions, source_options
from golddiff.system.errors import ArgumentError, SourceError
from golddiff.system.files import readable

if TYPE_CHECKING:
    from golddiff.sources.source import Source

GENERATED = ("moons", "patches")  # at random
BUILTINS = ("digits", *GENERATED)
_KNOWN = "a folder, .parquet, .zip, .npz, .npy, .pt, idx files (.gz) or CIFAR's .tar.gz"


def open_source(source: Any, **options: Any) -> Source:
    """Open a training set of any kind, to be read once from start to end.

    Args:
        source: one of

            - a torch tensor or NumPy array: (N, C, H, W) images, (N, H, W) grey images or (N, D)
              points; uint8 in 0..255 (also (N, H, W, C)), or floats, which keep their values;
            - a ``datasets.Dataset`` or ``DatasetDict`` with a column of images;
            - a list, a ``torch.utils.data.Dataset`` or a ``DataLoader`` of images (Pillow images,
              paths, arrays, tensors) or of (image, label) pairs;
            - a path: a folder of images (flat, or one subfolder per class) or of parquet shards; a
              ``.parquet``, ``.zip``, ``.npz``, ``.npy`` or ``.pt`` file; MNIST's idx files; CIFAR's
              pickles;
            - a built-in: ``"digits"``, ``"moons"`` or ``"patches"`` (``"./digits"`` or a ``Path``
              means the folder);
            - the name of a dataset on the Hugging Face hub.
        options: the fields of :class:`SourceOptions`.

    Returns:
        A source with ``info``, ``skipped`` and ``batches(size)``. Images are uint8 (C, H, W);
        float arrays become float32.

    Raises:
        ArgumentError: an option has a value that is not allowed, or does not apply.
        SourceError: the source cannot be read, or its images differ in shape or type.
    """
    from golddiff.sources.arrays import check_values

    checked = source_options(**options)
    if checked.seed and not (isinstance(source, str) and source in GENERATED):
        raise ArgumentError(
            f"seed: got {checked.seed}, which applies to {' and '.join(GENERATED)} only"
        )
    if isinstance(source, str | os.PathLike):
        opened = _open_name_or_path(source, checked)
    else:
        opened = _open_object(source, checked)
    check_values(opened, checked)
    return opened


def _open_object(source: Any, options: SourceOptions) -> Source:
    from golddiff.sources.arrays import is_array, open_array
    from golddiff.sources.examples import is_example_list, open_examples
    from golddiff.sources.tables import open_dataset

    if is_array(source):
        options.refuse("arrays")
        return open_array(source, options)
    datasets = sys.modules.get("datasets")
    if datasets is not None and isinstance(source, (datasets.Dataset, datasets.DatasetDict)):
        if not isinstance(source, dict):
            options.refuse("a Dataset, which is one split of a DatasetDict", [SPLIT])
        return open_dataset(source, options)
    if is_example_list(source):
        return open_examples(source, options)
    raise ArgumentError(
        f"source is a {type(source).__name__}; give a tensor, an array, a list of images, a "
        "Dataset, a DataLoader, a path, the name of a hub dataset, or one of " + ", ".join(BUILTINS)
    )


def resolve_source(source: str | os.PathLike[str], split: str = "train") -> Any:
    """Resolve a name or path to a built-in's name, an existing path, or a dataset from the hub.

    Raises:
        ArgumentError: ``source`` is empty or holds a null character.
        SourceError: nothing has this name, or the hub cannot be reached.
    """
    from golddiff.sources.decode import EXTENSIONS
    from golddiff.sources.hub import NAME, load_from_hub

    text, is_text = os.fsdecode(source), isinstance(source, str)
    if is_text and text in BUILTINS:
        return text
    if not text or "\0" in text:
        raise ArgumentError(f"source is {text!r}; give a path or a name")
    path = Path(os.path.expanduser(text))
    with readable(f"{path} cannot be read"):  # a parent folder may be closed to this user
        if path.exists():
            return path
    known = (".parquet", ".zip", ".npz", ".npy", ".pt", ".pth", ".gz", ".tar", ".tgz", "idx3-ubyte")
    is_name = is_text and NAME.match(text) and not text.lower().endswith((*known, *EXTENSIONS))
    if not is_name:
        raise SourceError(f"{text} does not exist")
    return load_from_hub(text, split)


def _open_name_or_path(source: str | os.PathLike[str], options: SourceOptions) -> Source:
    """Open a built-in, a path or a dataset of the hub."""
    from golddiff.sources.builtin import open_builtin
    from golddiff.sources.tables import open_dataset

    target = resolve_source(source, options.split)
    if isinstance(target, str):
        return open_builtin(target, options)
    if isinstance(target, Path):
        return _open_path(target, options)
    return open_dataset(target, options, f"dataset {os.fsdecode(source)} ({options.split})")


def _open_path(path: Path, options: SourceOptions) -> Source:
    """Open an existing file or folder; a file's format follows from its name or first bytes."""
    from golddiff.sources import cifar, folders, idx, numpy_files, tables
    from golddiff.sources.decode import EXTENSIONS

    if path.is_dir():
        return folders.open_folder(path, options)
    if not path.is_file():
        raise SourceError(f"{path} is neither a file nor a folder")
    with readable(f"{path} cannot be read"), path.open("rb"):
        pass
    name = path.name.lower()
    if name.endswith(".parquet"):
        if options.split != DEFAULT_SPLIT:  # else any file is read, whatever its name
            tables.shards_of_split([path.name], options, path.name)
        return tables.open_parquet([path], options, f"parquet {path.name}")
    readers: dict[str, Callable[[Path, SourceOptions], Source]] = {
        ".zip": folders.open_zip, ".npz": numpy_files.open_npz, ".npy": numpy_files.open_npy,
        ".pt": numpy_files.open_pt, ".pth": numpy_files.open_pt,
        ".tar": cifar.open_cifar_tar, ".tar.gz": cifar.open_cifar_tar, ".tgz": cifar.open_cifar_tar,
    }  # fmt: skip
    for ending, read in readers.items():
        if name.endswith(ending):
            return read(path, options)
    if idx.is_idx(path) or "idx3-ubyte" in name:
        options.refuse("a single file of idx", [SPLIT])
        return idx.open_idx(path, options)
    if path.suffix.lower() in EXTENSIONS:
        raise SourceError(f"{path} is a single image; give the folder it is in")
    raise SourceError(f"{path} has an unknown format; give {_KNOWN}")
