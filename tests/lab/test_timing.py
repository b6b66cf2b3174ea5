import pytest

from golddiff_lab import timing
from golddiff_lab.timing import Timed, in_turns, timed


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(timing, "PAUSE", 0.0)


def side(name, seconds, log):
    """A call that takes prepared seconds, tells whose turn it was, and numbers its answers."""
    left = list(seconds)

    def call():
        log.append(name)
        return Timed(left.pop(0), 0.5, len(log))

    return call


def test_sides_take_turns_and_the_median_leaves_out_the_first():
    log = []
    timings = in_turns({"a": side("a", [99, 5, 1, 3], log), "b": side("b", [99, 8, 4, 4], log)}, 3)
    assert log == ["a", "b"] * 4
    assert timings["a"].seconds == 3
    assert timings["b"].seconds == 4
    assert timings["a"].measured == [5, 1, 3]
    assert (timings["a"].first, timings["a"].processor, timings["a"].out) == (99, 0.5, 1)


def test_a_slow_side_is_timed_once_and_does_not_hold_up_the_others():
    log = []
    slow, fast = side("slow", [70, 60], log), side("fast", [1, 1, 1, 1], log)
    timings = in_turns({"slow": slow, "fast": fast}, 3, seconds=60)
    assert timings["slow"].measured == [60]
    assert timings["fast"].measured == [1, 1, 1]


def test_a_call_is_timed_by_the_wall_and_by_the_processor():
    one = timed(lambda: sum(range(100_000)))
    assert one.out == 4_999_950_000
    assert 0 < one.seconds < 60
    assert one.processor >= 0
