"""A folder written whole or not at all: filled beside its place, then renamed."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from golddiff.system.errors import StoreError
from golddiff.system.files import DISK_FULL, locked

REFUSED = (errno.EACCES, errno.EROFS, errno.EPERM, errno.EEXIST, errno.ENOTDIR)


@contextlib.contextmanager
def folder_in_place(name: str, path: Path, busy: str) -> Iterator[Path]:
    """A hidden folder beside ``path``, whose place it takes if the block ends well.

    A reader, or whoever comes after a crash, finds the old folder or the new one, or none: never a
    mixture. What a process that was killed left is removed by the next. ``name`` is what is built.

    Raises:
        StoreError: ``busy``, where another process does the same; it cannot be written.
    """
    try:
        with _locked_folder(path, busy) as folder:
            yield folder
    except OSError as error:
        if error.errno in DISK_FULL:
            raise StoreError(
                f"{name}: the disk is full; building {path} stopped and left nothing behind"
            ) from error
        if error.errno in REFUSED:
            raise StoreError(f"{name}: cannot write {path} ({error.strerror})") from error
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise StoreError(
                f"{name}: {path} was not built: too many files are open (ulimit -n)"
            ) from error
        raise


@contextlib.contextmanager
def _locked_folder(path: Path, busy: str) -> Iterator[Path]:
    parent = path.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with locked(parent / f".{path.name}.lock", busy):
        for left in parent.glob(f".{glob.escape(path.name)}.building-*"):
            # Killed between the two renames of _put_in_place.
            if not left.is_symlink() and (left / "old").is_dir() and not path.exists():
                os.rename(left / "old", path)
            _remove(left)
        with _beside(path) as folder:
            yield folder
            _put_in_place(folder, path)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A hidden folder next to ``path``, gone afterwards whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.building-", dir=path.absolute().parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        _remove(folder)


def _put_in_place(folder: Path, path: Path) -> None:
    if not path.exists():
        os.rename(folder, path)
        return
    # The old one steps aside first: for some microseconds there is none.
    with _beside(path) as aside:
        old = aside / "old"
        try:
            os.rename(path, old)
            os.rename(folder, path)
        except BaseException:
            if os.path.lexists(old) and not os.path.lexists(path):
                os.rename(old, path)
            raise


def _remove(folder: Path) -> None:
    """Delete a folder; a link of its name goes, not what it leads to."""
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
