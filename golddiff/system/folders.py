"""Atomic writes of folders: fill a temporary folder beside the target, then rename it."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from golddiff.system.errors import BusyError, StoreError
from golddiff.system.files import DISK_FULL, locked

PATIENCE = 4 * 3600  # seconds to wait for another process; the largest builds take hours

REFUSED = (
    *(errno.EACCES, errno.EROFS, errno.EPERM, errno.EEXIST, errno.ENOTDIR),
    *(errno.EMFILE, errno.ENFILE),  # too many files are open
)


@contextlib.contextmanager
def folder_in_place(name: str, path: Path, busy: str) -> Iterator[Path]:
    """Yield a hidden folder beside ``path``; it replaces ``path`` if the block succeeds.

    A reader finds the old folder, the new one or none, even after a crash: never a mixture. The
    next call removes what a killed process left. Error messages begin with ``name``.

    Raises:
        BusyError: another process builds the folder; the message is ``busy``.
        StoreError: it cannot be written.
    """
    parent = path.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with locked(lock_of(path), busy):
            for leftover in parent.glob(f".{glob.escape(path.name)}.building-*"):
                # A process was killed between the two renames of _put_in_place.
                if not leftover.is_symlink() and (leftover / "old").is_dir() and not path.exists():
                    os.rename(leftover / "old", path)
                _remove(leftover)
            with _temporary_beside(path) as folder:
                yield folder
                _put_in_place(folder, path)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise StoreError(
                f"{name}: the disk is full; building {path} stopped and left nothing behind"
            ) from error
        if error.errno in REFUSED:
            raise StoreError(f"{name}: cannot write {path} ({error.strerror})") from error
        raise


def wait_for_builder(path: Path) -> None:
    """Wait while another process builds ``path``; BusyError after :data:`PATIENCE`."""
    lock, hours = lock_of(path), PATIENCE // 3600
    message = f"{path}: another process has built it for {hours} hours and holds {lock}; stop it"
    with locked(lock, message, PATIENCE):
        pass


def delete_folder(path: Path) -> None:
    """Delete a folder, hidden first: an interruption leaves no half of it at ``path``."""
    aside = _hidden_beside(path)
    os.rename(path, aside / "deleted")
    shutil.rmtree(aside)


def is_abandoned(path: Path) -> bool:
    """Whether a folder is a hidden one of this module, left by a killed process."""
    match = re.fullmatch(r"\.(.+)\.building-\w+", path.name)
    if match is None:
        return False
    # OSError: the lock file cannot be written.
    with contextlib.suppress(BusyError, OSError), locked(lock_of(path.with_name(match[1])), ""):
        return True
    return False


def lock_of(path: Path) -> Path:
    """The lock file of a folder that is built, beside it."""
    return path.absolute().with_name(f".{path.name}.lock")


def _hidden_beside(path: Path) -> Path:
    """Create the hidden folder that :func:`is_abandoned` recognises."""
    return Path(tempfile.mkdtemp(prefix=f".{path.name}.building-", dir=path.absolute().parent))


@contextlib.contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """Create a hidden folder beside ``path`` and delete it on exit."""
    folder = _hidden_beside(path)
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        _remove(folder)


def _put_in_place(folder: Path, path: Path) -> None:
    if not path.exists():
        os.rename(folder, path)
        return
    # The old folder is moved first, so for some microseconds ``path`` does not exist.
    with _temporary_beside(path) as aside:
        old = aside / "old"
        try:
            os.rename(path, old)
            os.rename(folder, path)
        except BaseException:
            if os.path.lexists(old) and not os.path.lexists(path):
                os.rename(old, path)
            raise


def _remove(folder: Path) -> None:
    """Delete a folder; if it is a symbolic link, delete the link and not its target."""
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
