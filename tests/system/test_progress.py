"""Progress output on a terminal."""

import os
import sys
from types import SimpleNamespace

import pytest

from golddiff.system.progress import _TimeLeft

pty = pytest.importorskip("pty", reason="terminals of Unix")

BARS = """
import golddiff
golddiff.recommended(golddiff.load("digits", limit=30))
"""


def terminal_output(*arguments):
    """The output of Python on a terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, *arguments])
    output = b""
    try:
        while piece := os.read(terminal, 1 << 16):
            output += piece
    except OSError:  # Linux raises this when the child has ended
        pass
    os.waitpid(child, 0)
    return output.decode()


def test_a_command_reports_at_once_that_it_is_starting(tmp_path):
    output = terminal_output("-m", "golddiff", "info", str(tmp_path / "nowhere"))
    assert "starting" in output
    assert output.index("starting") < output.index("does not exist")


def test_one_time_work_on_a_store_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path))
    output = terminal_output("-c", BARS)
    first = output.index("reading digits")
    assert output.index("measuring novelty, once for this store") > first
    assert "Error" not in output


@pytest.mark.parametrize(
    ("done", "total", "elapsed", "expected"),
    [
        (5, 10, 60.0, "0:01:00"),
        (1, 10, 20.0, "0:03:00"),  # the first step counts like the others
        (1, 100, 20.0, "-:--:--"),
        (0, None, 20.0, "-:--:--"),
        (10, 10, 60.0, "-:--:--"),  # what is not counted may take as long again
    ],
)
def test_the_time_left_assumes_the_mean_speed_so_far(done, total, elapsed, expected):
    task = SimpleNamespace(completed=done, total=total, elapsed=elapsed)
    assert str(_TimeLeft().render(task)) == expected
