"""Watches a reader: files it opens outside its folder, and code it runs."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Python's audit events for actions that no reader needs.
FORBIDDEN = (
    *("exec", "code.__new__", "ctypes.dlopen", "marshal.loads", "pickle.find_class.os"),
    *("os.exec", "os.fork", "os.posix_spawn", "os.startfile", "os.system", "pty.spawn"),
    *("os.remove", "os.rename", "shutil.rmtree", "subprocess.Popen"),
    *("socket.bind", "socket.connect", "socket.getaddrinfo"),
)
# Python and its packages read these: source lines of warnings, lazy imports, time zones, memory.
READABLE = tuple(
    os.path.realpath(path)
    for path in (
        sys.prefix,
        sys.base_prefix,
        sysconfig.get_paths()["stdlib"],
        "/proc",
        "/sys/fs/cgroup",  # memory limits
        "/usr/share",
    )
)
REPOSITORY = str(Path(__file__).resolve().parents[2])

_folder: str | None = None
_forbidden: tuple[str, ...] = FORBIDDEN
_events: list[str] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _folder is None:
        return
    if event == "open" and isinstance(arguments[0], str | bytes):
        mode, flags = arguments[1], arguments[2]
        writing = bool(set(str(mode or "")) & set("wax+")) or (
            isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) != 0
        )
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if _inside(path, _folder):
            return
        if writing or not (path.startswith(READABLE) or _inside(path, REPOSITORY)):
            _events.append(f"opened {path}{' for writing' if writing else ''}")
    elif event == "ctypes.dlopen" and arguments[0] is None:
        return  # the program itself, for a system call
    elif event in _forbidden and not _during_import(event):
        if event in ("os.remove", "os.rename", "shutil.rmtree") and _all_inside(arguments, _folder):
            return
        _events.append(f"{event} {repr(arguments)[:120]}")


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def _all_inside(arguments: tuple[object, ...], folder: str) -> bool:
    """Whether all removed or renamed paths, perhaps relative to an open folder, are inside."""
    names = [os.fsdecode(a) for a in arguments if isinstance(a, str | bytes | os.PathLike)]
    descriptors = [a for a in arguments if isinstance(a, int) and a >= 0]
    parents = [os.path.realpath(f"/proc/self/fd/{descriptor}") for descriptor in descriptors]
    paths = [os.path.join(parent, name) for parent in parents or [""] for name in names]
    # A link itself is removed or renamed, not its target.
    return all(
        _inside(os.path.join(os.path.realpath(os.path.dirname(p)), os.path.basename(p)), folder)
        for p in paths
    )


def _during_import(event: str) -> bool:
    """Whether the event comes from importing a module, which runs its code."""
    if event not in ("exec", "marshal.loads", "code.__new__", "ctypes.dlopen"):
        return False
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        # dataclass and namedtuple compile their methods from source text
        if frame.f_code.co_filename.endswith(("dataclasses.py", "collections/__init__.py")):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


sys.addaudithook(_hook)


@contextlib.contextmanager
def watched(folder: Path, forbidden: tuple[str, ...] = FORBIDDEN) -> Iterator[list[str]]:
    """Record files opened outside ``folder`` and ``forbidden`` audit events during the block."""
    global _folder, _forbidden
    _events.clear()
    _folder, _forbidden = os.path.realpath(folder), forbidden
    try:
        yield _events
    finally:
        _folder = None


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Pause watching for the actions of the harness itself."""
    global _folder
    watched_folder, _folder = _folder, None
    try:
        yield
    finally:
        _folder = watched_folder
