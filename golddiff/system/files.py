"""Output files: found unwritable before the work starts, and written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from golddiff.system.errors import ArgumentError

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # or no more of it is ours
# safetensors gives the system's number, torch does not.
_FROM_LIBRARIES = re.compile(
    r"\(os error (\d+)\)|PytorchStreamWriter failed writing|unexpected pos \d+ vs"
)


def check_writable(name: str, path: Path, suffixes: Sequence[str] = ()) -> None:
    """Raise now where writing ``path``, the argument ``name``, would fail later.

    Its folder need not exist yet; its name has to end in one of ``suffixes``, if there are any.
    """
    if suffixes and path.suffix.lower() not in suffixes:
        raise ArgumentError(f"{name}: got {path}, expected a name ending in {', '.join(suffixes)}")
    try:
        if path.is_dir():
            raise ArgumentError(f"{name}: {path} is a folder, expected a file name")
        parent = path.absolute().parent
        while not parent.exists():
            parent = parent.parent
        # The only test that holds for read-only disks, access lists and the superuser alike.
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise _unwritable(name, path, error) from error


def leads_out(folder: Path, path: Path) -> bool:
    """Whether a path in a folder is, or lies behind, a symbolic link that leads out of it.

    A folder that came from elsewhere must not choose what is read or written on this machine.
    """
    root, target = os.path.realpath(folder), os.path.realpath(path)
    return os.path.commonpath([root, target]) != root


@contextlib.contextmanager
def written_whole(name: str, path: Path) -> Iterator[Path]:
    """A temporary file beside ``path``, the argument ``name``, whose place it takes in the end.

    Only if the block ends well; the folder is made where it is missing.
    """
    temporary: Path | None = None
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        handle, text = tempfile.mkstemp(
            prefix=".golddiff-", suffix=path.suffix, dir=path.absolute().parent
        )
        os.close(handle)
        temporary = Path(text)
        with system_errors(path):
            yield temporary
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(name, path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """What libraries raise of their own where the system refused a file, as the system's error."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        found = _FROM_LIBRARIES.search(str(error))
        if found is None:
            raise
        number = int(found[1]) if found[1] else errno.ENOSPC
        raise OSError(number, os.strerror(number), str(path)) from error


def _unwritable(name: str, path: Path, error: OSError) -> ArgumentError:
    return ArgumentError(f"{name}: {path} cannot be written ({error.strerror or error})")


def _umask() -> int:
    # There is no way to read it but to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
