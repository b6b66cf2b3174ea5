import math
import time
from dataclasses import fields

import numpy as np
import torch

from golddiff_lab.race.machine import (
    Machine,
    add_rate,
    copy_rate,
    fastest,
    matrix_rate,
    sum_passes,
)
from golddiff_lab.race.memory import peak_resident


def test_the_addition_loop_does_as_many_additions_as_are_counted():
    # Of ones, the sum is the number of additions (exact in float32 up to 2^24).
    assert sum_passes(np.ones(1024, np.float32), 7) == 7 * 1024


def test_rates_are_positive_and_finite():
    rates = [
        matrix_rate(torch.float32, 32, 0.0),
        matrix_rate(torch.bfloat16, 32, 0.0),
        add_rate(256, 1024, 2, 0.0),
        copy_rate(1 << 16, 2, 0.0),
    ]
    assert all(math.isfinite(rate) and rate > 0 for rate in rates)


def test_a_rate_is_what_is_counted_over_the_time_of_the_fastest_run(monkeypatch):
    clock = iter([0.0, 0.5, 1.0, 1.25, 2.0, 2.75])  # runs of 0.5, 0.25 and 0.75 seconds
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    runs = []
    assert fastest(lambda: runs.append(1), 1.0) == 0.25
    assert len(runs) == 4  # the first one is not counted


def test_matrix_and_copy_rates_count_both_operations_and_both_ways(monkeypatch):
    monkeypatch.setattr("golddiff_lab.race.machine.fastest", lambda work, seconds: 0.5)
    assert matrix_rate(torch.float32, 8, 1.0) == 2 * 8**3 / 0.5
    assert copy_rate(1000, 2, 1.0) == 2 * 1000 / 0.5
    assert add_rate(256, 1024, 3, 1.0) == 3 * 1024 / 0.5


def test_the_copy_copies_everything(monkeypatch):
    copied = []
    monkeypatch.setattr("golddiff_lab.race.machine.fastest", lambda work, seconds: work() or 1.0)
    monkeypatch.setattr(np, "copyto", lambda target, source: copied.append(source.nbytes))
    copy_rate(1001, 3, 0.0)
    assert sum(copied) == 1001


def test_of_two_measurements_the_higher_rates_are_kept():
    a, b = Machine(2, 1, 4, 1, 4, 1), Machine(2, 3, 2, 3, 2, 3)
    best = a.best_of(b)
    assert [getattr(best, f.name) for f in fields(best)] == [2, 3, 4, 3, 4, 3]


def test_peak_memory_is_bytes_and_never_falls():
    before = peak_resident()
    assert 1 << 24 < before < 1 << 40
    np.ones(1 << 20, np.uint8)
    assert peak_resident() >= before
