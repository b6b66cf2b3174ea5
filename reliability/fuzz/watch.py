"""What reading one input did: files it opened elsewhere, code it ran, memory it took."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Python's own audit events of what a reader has no reason to do.
FORBIDDEN = (
    *(
        "exec",
        "code.__new__",
        "ctypes.dlopen",
        "marshal.loads",
        "os.exec",
        "os.fork",
        "os.posix_spawn",
    ),
    *("os.system", "os.startfile", "pickle.find_class.os", "pty.spawn", "shutil.rmtree"),
    *(
        "socket.connect",
        "socket.bind",
        "socket.getaddrinfo",
        "subprocess.Popen",
        "os.remove",
        "os.rename",
    ),
)
# Python and its packages read their own files, and what memory there is: the line of a warning, a
# lazy import, the clock.
OWN = tuple(
    os.path.realpath(place)
    for place in (
        sys.prefix,
        sys.base_prefix,
        sysconfig.get_paths()["stdlib"],
        "/proc",
        "/sys/fs/cgroup",  # how much memory there is
        "/usr/share",
    )
)
HERE = str(Path(__file__).resolve().parents[2])

_folder: str | None = None
_events: list[str] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _folder is None:
        return
    if event == "open" and isinstance(arguments[0], str | bytes):
        mode, flags = arguments[1], arguments[2]
        writing = bool(set(str(mode or "")) & set("wax+")) or (
            isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) != 0
        )
        place = os.path.realpath(os.fsdecode(arguments[0]))
        if _inside(place, _folder):
            return
        if writing or not (place.startswith(OWN) or (_inside(place, HERE))):
            _events.append(f"opened {place}{' for writing' if writing else ''}")
    elif event == "ctypes.dlopen" and arguments[0] is None:
        return  # this program itself, for a system call
    elif event in FORBIDDEN and not _of_import(event):
        shown = repr(arguments)[:120]
        if event in ("os.remove", "os.rename", "shutil.rmtree") and _all_inside(arguments, _folder):
            return
        _events.append(f"{event} {shown}")


def _inside(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder + os.sep)


def _all_inside(arguments: tuple[object, ...], folder: str) -> bool:
    """Whether what is removed or renamed lies in the folder; names may be of an open folder's."""
    names = [os.fsdecode(a) for a in arguments if isinstance(a, str | bytes | os.PathLike)]
    opened = [a for a in arguments if isinstance(a, int) and a >= 0]
    homes = [os.path.realpath(f"/proc/self/fd/{descriptor}") for descriptor in opened]
    places = [os.path.join(home, name) for home in homes or [""] for name in names]
    # The link itself is removed or renamed, not what it leads to.
    return all(
        _inside(os.path.join(os.path.realpath(os.path.dirname(p)), os.path.basename(p)), folder)
        for p in places
    )


def _of_import(event: str) -> bool:
    """Whether a module of an installed package is being imported, which runs its own code."""
    if event not in ("exec", "marshal.loads", "code.__new__", "ctypes.dlopen"):
        return False
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        # dataclass and namedtuple write their methods as source text
        if frame.f_code.co_filename.endswith(("dataclasses.py", "collections/__init__.py")):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


sys.addaudithook(_hook)


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """What went on inside: everything opened outside ``folder``, everything run."""
    global _folder
    _events.clear()
    _folder = os.path.realpath(folder)
    try:
        yield _events
    finally:
        _folder = None


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """What the driver itself does while a reader is watched."""
    global _folder
    before, _folder = _folder, None
    try:
        yield
    finally:
        _folder = before


class Peak:
    """The largest resident memory since :meth:`start`, above what it was then."""

    def __init__(self) -> None:
        self._before = 0

    def start(self) -> None:
        """Forget the peak so far."""
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self._before = _status("VmRSS")

    def bytes(self) -> int:
        """Bytes above the start."""
        return max(0, _status("VmHWM") - self._before)


def _status(name: str) -> int:
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(name.encode()):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0
