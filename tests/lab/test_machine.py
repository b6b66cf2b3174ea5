import pytest

from golddiff_lab import machine
from golddiff_lab.machine import measure
from golddiff_lab.timing import CPU, Timed


@pytest.fixture(autouse=True)
def _small_measurements(monkeypatch):
    monkeypatch.setattr(machine, "MATRIX_SIDE", 256)
    monkeypatch.setattr(machine, "COPIED", 1 << 20)


def test_a_rate_is_the_work_over_the_time_of_the_fastest_run(monkeypatch):
    clock = iter([0.5, 0.25, *[0.75] * (machine.RUNS - 2)] * 2)
    monkeypatch.setattr(machine, "timed", lambda work, device: Timed(next(clock), 0.0, None))
    rates = measure(CPU)
    assert rates.matrix == 2 * 256**3 / 0.25
    assert rates.copy == 2 * (1 << 20) / 0.25  # read and written
