"""The measurements of :mod:`golddiff.machine`: the kernels themselves, over made-up images."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from golddiff.adaptive.drawing import draw
from golddiff.bench.machine import fastest
from golddiff.kernels.block_squares import block_squares
from golddiff.kernels.lowest import lowest
from golddiff.kernels.mask_tiles import cut
from golddiff.kernels.mask_tree import MaskTree, mask_tree
from golddiff.kernels.pca_cpu import masked_posterior
from golddiff.kernels.products import less_twice_the_products, products
from golddiff.kernels.rows import squared_distances
from golddiff.parallel import in_order

TRIED = 0.01  # seconds that each is tried for
SHAPE, IMAGES = (2, 32, 32), 512  # terms of a block of images: 0.5 MB, second level cache
RANKED, COORDINATES, TILES = 16_384, 64, 4  # one task of the product
# A thread's own time, where it is told finely: other work on the machine then hardly counts.
FINE = time.get_clock_info("thread_time").resolution <= 1e-6
CLOCK = time.thread_time if FINE else time.perf_counter
REACH = 240.0  # of distances at noise level 1: half of them are near enough to be looked at
SIGMA = 30.0  # no output's softmax is skipped


def measured() -> dict[str, float]:
    """Seconds of each operation of :data:`golddiff.machine.CONSTANTS`."""
    return {**_masked(), **_choosing()}


def _masked() -> dict[str, float]:
    """From three trees of different additions, values and outputs: three equations."""
    generator = np.random.default_rng(0)
    d = int(np.prod(SHAPE))
    flat = generator.integers(0, 256, (IMAGES, d)).astype(np.uint8)
    rows, x = np.arange(IMAGES), SIGMA * generator.standard_normal((1, d)).astype(np.float32)
    single = mask_tree(np.eye(d, dtype=np.bool_), SHAPE)
    dense = mask_tree(generator.random((d, d)) < 0.1, SHAPE)
    trees = (single, dense, cut(dense, SHAPE, 8)[0])  # the last: all values, 64 outputs
    weights = np.zeros(IMAGES, np.float32)

    def seconds_of(tree: MaskTree) -> float:
        scaled = (x, SIGMA, tree, 1 / 127.5, -1.0)
        return _each(lambda: masked_posterior(flat, rows, weights, *scaled)) / IMAGES

    counts = [[len(t.inputs), len(t.columns), int((t.output >= 0).sum())] for t in trees]
    solved = np.linalg.solve(counts, [seconds_of(tree) for tree in trees])
    per_value = _each(lambda: squared_distances(flat, rows, x, 1 / 127.5, -1.0)) / flat.size
    names = ("addition", "value", "softmax")
    return {**dict(zip(names, solved.tolist(), strict=True)), "distance": per_value}


def _choosing() -> dict[str, float]:
    generator = np.random.default_rng(0)
    own = REACH * generator.random((TILES, RANKED), np.float32)
    numbers = generator.standard_normal((COORDINATES, RANKED), np.float32)
    vectors = generator.standard_normal((TILES, COORDINATES), np.float32)
    rows, uniform = np.arange(RANKED), generator.random(RANKED, np.float32)
    few = RANKED // 32
    product = _each(lambda: less_twice_the_products(own, numbers, vectors))
    image = (3, 32, 32)
    flat = generator.integers(0, 256, (64, int(np.prod(image)))).astype(np.uint8)
    x = generator.standard_normal((flat.shape[1],), np.float32)
    places = np.arange(len(flat))
    squares = _each(lambda: block_squares(flat, places, x, image, 1 / 127.5, -1.0))
    blocks = generator.standard_normal((256, 512), np.float32)
    shares = generator.standard_normal((64, 256), np.float32)
    weighed = _each(lambda: products(shares, blocks))
    return {
        "square": squares / flat.size,
        "product": weighed / (blocks.size * len(shares)),
        "coordinate": product / (TILES * RANKED * COORDINATES),
        "drawn": _each(lambda: draw(own[0], rows, few, 1.0, uniform)) / RANKED,
        "nearest": _each(lambda: lowest(own[0], few)) / RANKED,
    }


def _each(work: Callable[[], object]) -> float:
    """Seconds of ``work`` where every thread does it at once: a thread's over their number."""
    threads = torch.get_num_threads()
    each = list(in_order(lambda _: fastest(work, TRIED, CLOCK), range(threads)))
    return sum(each) / threads**2
