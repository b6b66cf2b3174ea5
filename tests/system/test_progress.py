"""What someone at a terminal sees while nothing else is said."""

import os
import sys
from types import SimpleNamespace

import pytest

from golddiff.system.progress import _TimeLeft

pty = pytest.importorskip("pty", reason="terminals of Unix")

BARS = """
import golddiff
store = golddiff.load("digits", limit=100)
golddiff.recommended(store)
golddiff.recommended(store)
"""


def seen(*arguments):
    """What Python shows on a terminal: pieces, as they came."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, *arguments])
    said = b""
    try:
        while piece := os.read(terminal, 1 << 16):
            said += piece
    except OSError:  # how Linux tells that the other side is closed
        pass
    os.waitpid(child, 0)
    return said.decode()


def test_a_command_says_at_once_that_it_starts(tmp_path):
    shown = seen("-m", "golddiff", "info", str(tmp_path / "nowhere"))
    assert "starting" in shown
    assert shown.index("starting") < shown.index("does not exist")


def test_python_shows_what_is_done_once_a_store(tmp_path, monkeypatch):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path))
    shown = seen("-c", BARS)
    first = shown.index("reading digits")
    assert shown.index("measuring novelty, once for this store") > first
    assert "Error" not in shown
    assert "measuring" not in seen("-c", BARS)  # it is kept


@pytest.mark.parametrize(
    ("done", "total", "elapsed", "said"),
    [
        (5, 10, 60.0, "0:01:00"),
        (1, 10, 20.0, "0:03:00"),  # the first step counts as any other
        (1, 100, 20.0, "-:--:--"),
        (0, None, 20.0, "-:--:--"),
        (10, 10, 60.0, "0:00:00"),
    ],
)
def test_the_time_left_is_at_the_speed_so_far(done, total, elapsed, said):
    task = SimpleNamespace(completed=done, total=total, elapsed=elapsed)
    assert str(_TimeLeft().render(task)) == said
