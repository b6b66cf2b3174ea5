import numpy as np
import pytest
import torch

from golddiff_lab import timing
from golddiff_lab.timing import race, straight_line


class FakeSide:
    """Answers with prepared seconds, and writes down whose turn it was."""

    def __init__(self, name, seconds, log, images=None, warm_up=True):
        self.name = name
        self.seconds, self.log = {k: list(v) for k, v in seconds.items()}, log
        self.images, self.warm_up = images, warm_up

    def ask(self, method, *arguments):
        if method == "about":
            return 0, self.images, self.warm_up
        x, _, which = arguments
        self.log.append((self.name, which))
        return self.seconds[which].pop(0), np.full_like(x, len(self.log))


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(timing, "PAUSE", 0.0)


def test_sides_take_turns_and_the_median_leaves_out_the_first():
    log = []
    a = FakeSide("a", {"step": [99, 5, 1, 3]}, log)
    b = FakeSide("b", {"step": [99, 8, 4, 4]}, log)
    timings = race([a, b], torch.zeros(2, 3), 1.0, 3, images=10)
    assert [name for name, _ in log] == ["a", "b"] * 4
    assert timings["a"].seconds == 3
    assert timings["b"].seconds == 4
    assert timings["a"].measured == [5, 1, 3]
    assert timings["a"].first == 99
    assert timings["a"].out.eq(1).all()


def test_a_side_that_makes_nothing_is_not_warmed_up():
    log = []
    side = FakeSide("a", {"step": [5, 7]}, log, warm_up=False)
    result = race([side], torch.zeros(1, 2), 1.0, 2, images=10)["a"]
    assert result.seconds == 6
    assert result.first == 5
    assert result.out.eq(1).all()


def test_a_side_over_part_of_the_images_is_drawn_out_with_its_fixed_part_fixed():
    # 2 s whatever the images, 0.1 s an image.
    seconds = {"step": [99, 10, 10], "half": [6, 6], "quarter": [4, 4]}
    side = FakeSide("a", seconds, [], images=80)
    result = race([side], torch.zeros(1, 2), 1.0, 2, images=1000)["a"]
    assert result.seconds == pytest.approx(2 + 0.1 * 1000)
    assert result.straightness == pytest.approx(1)
    assert result.out is None


def test_a_middle_off_the_line_is_told():
    seconds = {"step": [99, 10], "half": [9], "quarter": [4]}
    side = FakeSide("a", seconds, [], images=80)
    assert race([side], torch.zeros(1, 2), 1.0, 1, images=99)["a"].straightness == 1.5


def test_a_line_goes_through_its_points():
    line = straight_line(2, 10, 6, 30)
    assert (line(2), line(6), line(100)) == (10, 30, 500)
