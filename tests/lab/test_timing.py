import pytest

from golddiff_lab import timing
from golddiff_lab.timing import Timed, in_turns


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(timing, "PAUSE", 0.0)


def make_side(name, seconds, log):
    """A call that reports the next of ``seconds``, logs its name and returns the log's length."""
    remaining = list(seconds)

    def call():
        log.append(name)
        return Timed(remaining.pop(0), 0.5, len(log))

    return call


def test_sides_take_turns_and_the_median_excludes_the_first_call():
    log = []
    a, b = make_side("a", [99, 5, 1, 3], log), make_side("b", [99, 8, 4, 4], log)
    timings = in_turns({"a": a, "b": b}, 3)
    assert log == ["a", "b"] * 4
    assert timings["a"].seconds == 3
    assert timings["b"].seconds == 4
    assert timings["a"].measured == [5, 1, 3]
    assert (timings["a"].first, timings["a"].processor, timings["a"].out) == (99, 0.5, 1)


def test_a_slow_side_is_timed_once_and_fast_ones_as_often_as_asked():
    log = []
    slow, fast = make_side("slow", [70, 60], log), make_side("fast", [1, 1, 1, 1], log)
    timings = in_turns({"slow": slow, "fast": fast}, 3, seconds=60)
    assert timings["slow"].measured == [60]
    assert timings["fast"].measured == [1, 1, 1]
