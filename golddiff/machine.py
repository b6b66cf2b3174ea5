"""A small model of the machine: seconds of the operations that choices are between.

Measured when first asked for, in one or two seconds, with as many threads as torch uses, and
kept in the cache folder for this processor, number of threads and version. Where measuring fails
constants take its place. ``$GOLDDIFF_MACHINE`` overrides it: "constants", or a JSON file of some of
the names below with their seconds.

It decides how images are chosen (:mod:`golddiff.adaptive`), and predicts what that takes. Not block
sizes: a block of 64 images is four registers, and larger parts hardly matter (PCA over 4,096
CIFAR-10 images in parts of 256, 512 and 1,024: within 4% at sigma 6.2, 8% at 0.34). Nor precisions:
those follow from what errors allow, and are the same on every machine so that results are too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import platform
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from golddiff import __version__
from golddiff.errors import ArgumentError
from golddiff.store.cache import cache_folder
from golddiff.system.files import written_whole

OVERRIDE, NAME = "GOLDDIFF_MACHINE", "machine.json"

# Seconds of each, all threads together, as two cores with AVX-512 take them; for one query and:
CONSTANTS = {
    "addition": 1.5e-11,  # an addition of a mask tree, an image
    "value": 9.0e-11,  # a stored value, read and squared, an image
    "softmax": 1.6e-10,  # an output value's exponential and sums, an image
    "distance": 2.8e-11,  # a value of Optimal's squared distances, an image
    "byte": 1.0e-10,  # of a row that lies by itself in a file that is not resident, read
    "swept": 1.0e-11,  # a coordinate of a byte, in memory, an image
    "coordinate": 1.8e-11,  # a coordinate of the product that ranks, an image and tile
    "square": 3.0e-11,  # a value's square, summed by blocks, an image
    "product": 1.1e-11,  # a multiply-add of blocks with a tile, an image
    "drawn": 3.8e-9,  # drawing by weight, an image ranked and tile
    "nearest": 6.0e-10,  # finding the nearest, an image ranked and tile
}
SLOWEST = 1e-3  # seconds; more, for any of them, is no measurement

log = logging.getLogger("golddiff")
_used: dict[str, Mapping[str, float]] = {}


def seconds(name: str) -> float:
    """Seconds of one operation of ``CONSTANTS``, all threads together."""
    return costs()[name]


def costs() -> Mapping[str, float]:
    """The model: seconds of every operation of ``CONSTANTS``.

    Raises:
        ArgumentError: ``$GOLDDIFF_MACHINE`` names no file of such seconds.
    """
    chosen = os.environ.get(OVERRIDE)
    key = _key() if chosen is None else chosen
    if key not in _used:
        if chosen is None:
            _used[key] = _kept_or_measured(key)
        else:
            _used[key] = CONSTANTS if chosen == "constants" else read(Path(chosen))
    return _used[key]


def read(path: Path) -> dict[str, float]:
    """The model that a JSON file gives; constants for names that it lacks.

    Raises:
        ArgumentError: not a JSON object of names of ``CONSTANTS`` and seconds above 0.
    """
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{OVERRIDE}: {path} cannot be read ({error})") from None
    if not isinstance(given, dict) or not given.keys() <= CONSTANTS.keys() or not _sound(given):
        raise ArgumentError(
            f"{OVERRIDE}: {path} holds something else, expected a JSON object with seconds for "
            f"some of {', '.join(CONSTANTS)}"
        )
    return {**CONSTANTS, **given}


def _kept_or_measured(key: str) -> Mapping[str, float]:
    path = cache_folder() / NAME
    machines: dict[str, dict[str, float]] = {}
    with contextlib.suppress(OSError, ValueError, RecursionError, TypeError):
        machines = dict(json.loads(path.read_text(encoding="utf-8")))
    found = machines.get(key)
    if isinstance(found, dict) and found.keys() == CONSTANTS.keys() and _sound(found):
        return found
    from golddiff.machine_measure import measured  # its kernels import slowly

    made = _tried(measured)
    if made is None:
        return CONSTANTS
    log.info("measured this machine (%s): %s", key, text(made))
    with contextlib.suppress(ArgumentError, OSError), written_whole("machine", path) as temporary:
        temporary.write_text(json.dumps({**machines, key: made}, indent=1) + "\n", "utf-8")
    return made


def _tried(measure: Callable[[], dict[str, float]]) -> dict[str, float] | None:
    try:
        made = measure()
    except Exception as error:  # whatever it is, a choice by constants is better than none
        log.info("the machine could not be measured (%s)", error)
        return None
    return made if _sound(made) else None


def text(model: Mapping[str, float]) -> str:
    """The model in one line."""
    return ", ".join(f"{name} {value:.2g} s" for name, value in model.items())


def _sound(model: Mapping[str, object]) -> bool:
    return all(
        isinstance(value, float) and math.isfinite(value) and 0 < value < SLOWEST
        for value in model.values()
    )


def _key() -> str:
    return f"{_processor()}, {torch.get_num_threads()} threads, golddiff {__version__}"


def _processor() -> str:
    with contextlib.suppress(OSError):
        names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text("utf-8"))
        if names:
            return str(names[0]).strip()
    return platform.processor() or platform.machine()
