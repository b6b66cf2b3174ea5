"""The measurements of :mod:`golddiff.machine`: the kernels themselves, over made-up images."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice

import numpy as np
import torch

from golddiff.adaptive.drawing import draw
from golddiff.kernels.aligned import empty
from golddiff.kernels.block_squares import Weighing, block_distances, block_grid
from golddiff.kernels.gather import BLOCK, gather
from golddiff.kernels.lowest import lowest
from golddiff.kernels.mask_tree import MaskTree, mask_tree
from golddiff.kernels.pca_cpu import _terms, masked_posterior
from golddiff.kernels.products import less_twice_the_products
from golddiff.kernels.reading import read_pieces
from golddiff.kernels.rows import squared_distances
from golddiff.kernels.sweep import blocked, swept
from golddiff.system.parallel import in_order

TRIED = 0.01  # seconds that each is tried for
SHAPE, IMAGES = (2, 32, 32), 512  # terms of a block of images: 0.5 MB, second level cache
RANKED, COORDINATES, TILES = 16_384, 64, 4
# A thread's own time, where it is told finely: other work on the machine then hardly counts.
FINE = time.get_clock_info("thread_time").resolution <= 1e-6
CLOCK = time.thread_time if FINE else time.perf_counter
REACH = 240.0  # of distances at noise level 1: half of them are near enough to be looked at
SIGMA = 30.0  # no output's softmax is skipped
QUERIES = 4  # compared at once
FEW = 8  # blocks at once
READ, FEW_READ = 16_384, 128  # rows of a file of 50 MB, and those that are read at once
SWEPT = 262_144  # images: 17 MB of coordinates
APART = 32_768  # images of 3 KB: 100 MB, more than caches hold
LEAST = {"softmax": 4.0, "square": 0.5, "product": 0.25}  # of an addition's time


def fastest(work: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
    """Seconds of the fastest run of ``work`` out of those that fit in ``seconds``, at least two."""
    work()
    best, spent, runs = float("inf"), 0.0, 0
    while runs < 2 or spent < seconds:
        start = clock()
        work()
        took = clock() - start
        best, spent, runs = min(best, took), spent + took, runs + 1
    return best


def measured() -> dict[str, float]:
    """Seconds of each operation of :data:`golddiff.machine.CONSTANTS`, the better of two rounds."""
    rounds = [{**_masked(), **_choosing()} for _ in range(2)]
    best = {name: min(each[name] for each in rounds) for name in rounds[0]}
    # Differences of two measurements: where other work disturbs one, they may be next to nothing.
    for name, least in LEAST.items():
        best[name] = max(best[name], least * best["addition"])
    return best


def _masked() -> dict[str, float]:
    """Values by themselves; a dense mask's additions and outputs, and what outputs take alone."""
    generator = np.random.default_rng(0)
    d = int(np.prod(SHAPE))
    flat = generator.integers(0, 256, (IMAGES, d), np.uint8)
    rows, x = np.arange(IMAGES), SIGMA * generator.standard_normal((1, d)).astype(np.float32)
    single = mask_tree(np.eye(d, dtype=np.bool_), SHAPE)
    dense = mask_tree(generator.random((d, d)) < 0.1, SHAPE)
    weights = np.zeros(IMAGES, np.float32)

    def seconds_of(tree: MaskTree) -> float:
        scaled = (x, SIGMA, tree, 1 / 127.5, -1.0)
        return _each(lambda: masked_posterior(flat, rows, weights, *scaled)) / IMAGES

    alone, whole = seconds_of(single), seconds_of(dense)
    addition = (whole - alone) / (len(dense.inputs) - len(single.inputs))
    value = _value(generator)
    softmax = alone / d - value - addition
    per_value = _each(lambda: squared_distances(flat, rows, x, 1 / 127.5, -1.0)) / flat.size
    return {"addition": addition, "value": value, "softmax": softmax, "distance": per_value}


def _value(generator: np.random.Generator) -> float:
    """A stored value of images that lie apart, as those of supports do: read, turned, squared."""
    flat = np.ones((APART, 3072), np.uint8)
    columns = np.arange(1536)
    x = generator.standard_normal(len(columns), np.float32)
    scaled = np.float32(1 / 127.5), np.float32(-1.0)
    blocks = cycle(generator.permutation(APART).reshape(-1, BLOCK))  # never soon the same again

    def work() -> None:
        stored = np.empty(len(columns) * BLOCK, np.uint8)
        terms = empty((len(columns) * BLOCK,))
        for rows in islice(blocks, FEW):
            gather(flat, rows, columns, stored)
            _terms(stored, x, x, *scaled, terms)

    return _each(work) / (FEW * BLOCK * len(columns))


def _byte(generator: np.random.Generator) -> float:
    """A byte of rows that lie apart in a file that the system has at hand."""
    width, rows = 3072, generator.permutation(READ)
    lengths = np.full(FEW_READ, width)
    parts = cycle(rows.reshape(-1, FEW_READ) * width)
    with tempfile.TemporaryFile() as file:
        for _ in range(READ // FEW_READ):
            file.write(bytes(width * FEW_READ))
        file.flush()

        def work() -> None:
            read_pieces(file.fileno(), next(parts), lengths, np.empty(width * FEW_READ, np.uint8))

        return _each(work) / (width * FEW_READ)


def _swept(generator: np.random.Generator) -> float:
    """A coordinate of a byte, of more images than caches hold, for queries side by side."""
    z = generator.integers(-127, 128, (SWEPT, COORDINATES), np.int8)
    blocks, own = blocked(z), np.zeros(SWEPT, np.float32)
    none = blocks[:, :0].copy()
    vectors, out = np.ones((QUERIES, COORDINATES), np.float32), empty((QUERIES, SWEPT))
    return _each(lambda: swept(blocks, none, own, vectors, out)) / (vectors.size * SWEPT)


def _choosing() -> dict[str, float]:
    generator = np.random.default_rng(0)
    own = REACH * generator.random((TILES, RANKED), np.float32)
    numbers = generator.standard_normal((COORDINATES, RANKED), np.float32)
    vectors = generator.standard_normal((QUERIES, TILES, COORDINATES), np.float32)
    rows, uniform = np.arange(RANKED), generator.random(RANKED, np.float32)
    few = RANKED // 32
    product = _each(lambda: less_twice_the_products(own, numbers, vectors))
    square, weighed = _blocks(generator)
    return {
        "byte": _byte(generator),
        "square": square,
        "product": weighed,
        "swept": _swept(generator),
        "coordinate": product / (vectors.size * RANKED),
        "drawn": _each(lambda: draw(own[0], rows, few, 1.0, uniform)) / RANKED,
        "nearest": _each(lambda: lowest(own[0], few)) / RANKED,
    }


def _blocks(generator: np.random.Generator) -> tuple[float, float]:
    """A value's square, and a multiply-add of a block with a tile: from one tile and from many."""
    image, images = (3, 32, 32), 4 * BLOCK
    flat = generator.integers(0, 256, (images, int(np.prod(image))), np.uint8)
    x = generator.standard_normal((QUERIES, flat.shape[1]), np.float32)
    blocks, many = int(np.prod(block_grid(image))), 32

    def seconds_of(tiles: int) -> float:
        weighing = Weighing.of(image, generator.random((tiles, blocks), np.float32))
        out = np.empty((QUERIES, tiles, images), np.float32)
        scaled = (1 / 127.5, -1.0, out, 0)
        return _each(lambda: block_distances(flat, np.arange(images), x, weighing, *scaled))

    pair, all_ = seconds_of(2), seconds_of(many)
    weighed = (all_ - pair) / (QUERIES * images * blocks * (many - 2))
    return (pair / (QUERIES * images) - 2 * blocks * weighed) / flat.shape[1], weighed


def _each(work: Callable[[], object]) -> float:
    """Seconds of ``work`` where every thread does it at once: a thread's over their number."""
    threads = torch.get_num_threads()
    each = list(in_order(lambda _: fastest(work, TRIED, CLOCK), range(threads)))
    return sum(each) / threads**2
