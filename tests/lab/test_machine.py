import math

import numpy as np
import pytest
import torch

from golddiff.system.memory import peak_resident
from golddiff_lab import machine
from golddiff_lab.machine import Rates, measure
from golddiff_lab.timing import CPU, Timed


@pytest.fixture(autouse=True)
def _small_measurements(monkeypatch):
    monkeypatch.setattr(machine, "MATRIX_SIDE", 256)
    monkeypatch.setattr(machine, "COPIED", 1 << 20)


def test_rates_are_positive_and_finite():
    rates = measure()
    assert all(math.isfinite(rate) and rate > 0 for rate in (rates.matrix, rates.copy))
    assert rates.threads == torch.get_num_threads()


def test_a_rate_is_the_work_over_the_time_of_the_fastest_run(monkeypatch):
    clock = iter([0.5, 0.25, *[0.75] * (machine.RUNS - 2)] * 2)
    monkeypatch.setattr(machine, "timed", lambda work, device: Timed(next(clock), 0.0, None))
    rates = measure(CPU)
    assert rates.matrix == 2 * 256**3 / 0.25
    assert rates.copy == 2 * (1 << 20) / 0.25  # read and written


def test_best_of_keeps_the_higher_rate_of_each_kind():
    assert Rates(2, 1.0, 4.0).best_of(Rates(2, 3.0, 2.0)) == Rates(2, 3.0, 4.0)


def test_peak_memory_is_bytes_and_never_falls():
    before = peak_resident()
    assert 1 << 24 < before < 1 << 40
    np.ones(1 << 20, np.uint8)
    assert peak_resident() >= before
