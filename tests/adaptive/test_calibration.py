"""What stands for a full scan where there are too many images to scan."""

import numpy as np
import pytest

from golddiff import PCA, AdaptiveSchedule, Optimal
from golddiff.adaptive import calibration
from golddiff.adaptive.plan import Kind
from golddiff.adaptive.schedule import FittedSchedule
from golddiff.index import Index


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    store = make_store(smooth_images(3000, (3, 20, 20)))
    Index.build(store)
    return store


def made(monkeypatch, estimator, reference, tol):
    """Probes at sigma 6, by draws of so many images where they are good enough for ``tol``."""
    monkeypatch.setattr(calibration, "REFERENCE", reference)
    monkeypatch.setattr(calibration, "FEWEST_SCANNED", 0)
    looker = FittedSchedule(estimator, AdaptiveSchedule(0.05, index=True)).looker(
        6.0, None, Kind("nearest")
    )
    return calibration.probes(estimator, looker, 6.0, None, tol=tol)


def off(drawn, scanned):
    return [np.sqrt(np.mean((a.exact - b.exact) ** 2)) for a, b in zip(drawn, scanned, strict=True)]


@pytest.mark.parametrize("base", [Optimal, lambda store: PCA(store, 0.05)])
def test_two_draws_are_near_the_full_scan(store, monkeypatch, base):
    scanned = made(monkeypatch, base(store), 1500, None)
    drawn = made(monkeypatch, base(store), 1500, 0.4)
    assert 0 < max(off(drawn, scanned)) < 0.4 / 8 * 1.5
    assert all((a.x == b.x).all() for a, b in zip(drawn, scanned, strict=True))


def test_draws_that_differ_too_much_are_not_believed(store, monkeypatch):
    scanned = made(monkeypatch, Optimal(store), 8, None)
    assert max(off(made(monkeypatch, Optimal(store), 8, 0.01), scanned)) == 0


def test_an_image_left_out_is_in_neither_draw(store, monkeypatch):
    """At so little noise next to the images' distance it would be the whole mean."""
    monkeypatch.setattr(calibration, "DRAWN_ABOVE", 0.0)
    monkeypatch.setattr(calibration, "REFERENCE", 2000)
    monkeypatch.setattr(calibration, "FEWEST_SCANNED", 0)
    estimator = Optimal(store)
    schedule = FittedSchedule(estimator, AdaptiveSchedule(0.05, index=True))
    looker = schedule.looker(0.05, None, Kind("nearest"))
    for probe in calibration.probes(estimator, looker, 0.05, None, tol=10.0):
        if probe.row is not None:
            assert np.abs(probe.exact - store.values(np.array([probe.row]))[0]).max() > 0.05
