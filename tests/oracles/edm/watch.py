"""Record operations that a hostile pickle would use, such as imports and commands."""

import contextlib
import sys

# Audit events of Python; see "Audit events table" in its documentation.
WATCHED = (
    "builtins.input",
    "code.",
    "compile",
    "ctypes.",
    "exec",
    "import",
    "marshal.",
    "os.",
    "pickle.find_class",
    "shutil.",
    "socket.",
    "subprocess.",
    "sys._getframe",
)
_events: list[str] | None = None


def _hook(event, arguments):
    if _events is None:
        return
    if event.startswith(WATCHED):
        _events.append(f"{event} {arguments!r:.100}")
    elif event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        _events.append(f"open for writing {arguments[0]!r:.100}")


sys.addaudithook(_hook)


@contextlib.contextmanager
def watched():
    """Collect the events of the block. An audit hook cannot be removed, only disabled."""
    global _events
    _events = seen = []
    try:
        yield seen
    finally:
        _events = None
