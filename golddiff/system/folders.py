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
    *(errno.ENAMETOOLONG, errno.ELOOP),
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
                _clear(leftover, path)
            hidden = _hidden_beside(path)
            try:
                folder = hidden / "new"
                folder.mkdir()
                yield folder
                if path.exists():  # for some microseconds, it does not
                    os.rename(path, hidden / "old")
                os.rename(folder, path)
            finally:
                _clear(hidden, path)
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


def _clear(hidden: Path, path: Path) -> None:
    """Delete a hidden folder, or a link in its place; an old folder without a successor returns."""
    if hidden.is_symlink():
        hidden.unlink()
    elif os.path.lexists(hidden / "old") and not os.path.lexists(path):
        os.rename(hidden / "old", path)
    shutil.rmtree(hidden, ignore_errors=True)
