"""The plan of a noise level, measured: which ways compete, and what is enough."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from golddiff.adaptive.calibration import Probe, errors_of, full_scan, kinds_of, probes
from golddiff.adaptive.enough import BelowAll, Enough, NearlyAllWithin
from golddiff.adaptive.looking import linear_work
from golddiff.adaptive.plan import Kind, Plan
from golddiff.adaptive.racing import Option, Way, cheapest
from golddiff.kernels.mask_tiles import Side, pixels, tile_count

if TYPE_CHECKING:
    from golddiff.adaptive.schedule import FittedSchedule

MARGIN = 0.9  # the way that measures cheapest is in part the luckiest
WIDE = 8  # pixels; the mean mask of a smaller tile varies too much within a block
FEWEST = 256  # images; below that the full scan costs little and measuring tells little

log = logging.getLogger("golddiff")


def measured(schedule: FittedSchedule, sigma: float, label: int | None) -> Plan:
    """The cheapest plan of a noise level (and class) whose errors are small enough."""
    estimator, tol = schedule.estimator, schedule.tol
    images = estimator.store.count_of(label)
    full = full_scan(images)
    if images < FEWEST:
        return full
    log.info("sigma %.3g: measuring how many images an RMSE of %s takes", sigma, tol)
    indexed = schedule.indexed(images)
    # By clusters too many images would be needed for collages; docs/scale.md says so.
    by_clusters = indexed and (bool(estimator.tile_sides()) or schedule.index.sweep is None)
    asked = tol if isinstance(tol, float) else None
    collages = asked is not None and not by_clusters
    nearest = schedule.looker(sigma, label, Kind("nearest"))
    given = probes(estimator, nearest, sigma, label, collages, asked)
    enough = _enough(schedule, sigma, label, given)
    full_cost = estimator.cost(sigma) * images
    ways = _options(schedule, sigma, label)
    return cheapest(estimator, ways, sigma, given, enough, full, full_cost, indexed)


def _enough(
    schedule: FittedSchedule, sigma: float, label: int | None, given: list[Probe]
) -> Enough:
    """Whether errors on the probes are small enough: for a number, or for other schedules."""
    kinds = kinds_of(given)
    if isinstance(schedule.tol, float):
        return NearlyAllWithin(MARGIN * schedule.tol, kinds)
    allowed = [
        MARGIN**2 * errors_of(other, schedule.estimator, sigma, label, given)
        for other in schedule.tol
    ]
    return BelowAll(allowed, kinds)


def _options(schedule: FittedSchedule, sigma: float, label: int | None) -> Iterator[Option]:
    """The ways that compete, coarse tiles first: what they cost bounds the finer ones."""
    for side in (None, *schedule.estimator.tile_sides()):
        for kind in ways_of(schedule, side, label):
            least = _least(schedule, label, kind)
            yield Option(least, partial(_way, schedule, sigma, label, kind))


def ways_of(schedule: FittedSchedule, side: Side | None, label: int | None) -> list[Kind]:
    """The ways to choose images for tiles of a side, or (None) for the whole image."""
    kinds = [Kind("drawn", side), Kind("nearest", side)]
    tiles = schedule.estimator.tile_sides()
    indexed = schedule.indexed(schedule.estimator.store.count_of(label))
    if indexed and not tiles:  # all values of an image count alike, as its blocks have them
        kinds.append(Kind("screened"))
        if schedule.index.sweep is not None:
            kinds.remove(Kind("nearest"))  # by blocks too, but more than may matter
    wide = tiles and (side is None or pixels(side) >= WIDE)
    if wide and (not indexed or schedule.index.screen.in_memory):
        kinds += [Kind("drawn", side, by_blocks=True), Kind("nearest", side, by_blocks=True)]
    return kinds


def _way(schedule: FittedSchedule, sigma: float, label: int | None, kind: Kind) -> Way:
    each = schedule.estimator.cost(sigma, kind.side)
    return Way(kind, schedule.looker(sigma, label, kind), each)


def _least(schedule: FittedSchedule, label: int | None, kind: Kind) -> float:
    """Seconds that choosing takes at least, for one query."""
    store = schedule.estimator.store
    images = store.count_of(label)
    if schedule.indexed(images):
        return 0.0
    tiles = 1 if kind.side is None else tile_count(store.shape, kind.side)
    return linear_work(kind.name, tiles, images, schedule.comparing(kind))
