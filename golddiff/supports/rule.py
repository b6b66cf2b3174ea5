"""Which kind of support each tile of an output gets; the constants of :mod:`.adaptive`.

How wide the masks are says how large a tile may choose together, and how many images share a
tile's posterior says whether they are drawn or the nearest are taken. Measured on CIFAR-10
(45,000 images, PCA with threshold 0.03) and MNIST (54,000, 0.02), on images that are not in the
store, noised, and on points of a run; ``docs/adaptive.md`` has the table.
"""

from __future__ import annotations

from golddiff.support import OfChannel, Side

WIDE = 0.7  # share of the inputs that masks hold: above, one support serves the whole image
MEDIUM = 0.25  # above, each 8x8 tile of a channel chooses; below, each 4x4 tile
# Effective images of a tile's posterior from which on images are drawn: where masks are wider than
# ALIKE a tile's outputs weigh images much as the tile's mean does, and draws by it vary less.
ALIKE, MANY_ALIKE, MANY = 0.5, 64, 512

FIRST_RING = 64  # nearest images, then as many again, then twice as many ...
FIRST_DRAW = 224  # images drawn at first: the kernels take each of four groups in one piece
FEWEST = 1024  # images of a training set that is always weighed whole
# All images are weighed where more than such a share of them would be, on average: an image that
# each tile weighs for itself takes about three times as long as one that the whole image weighs.
MOST, MOST_OF_TILES = 1 / 2, 1 / 8

# The root mean square of what is still to come, in units of the last movement of the mean, from
# k / 2 to the nearest k: BEYOND where movements are independent, more where they are aligned.
BEYOND, ALIGNED = 1.4, 2.0
UNKNOWN = 0.5  # how aligned the first movement is taken to be with the next
# An estimate times this must be within the tolerance.
NEAREST_MARGIN, DRAWN_MARGIN = 1.25, 1.4


def side_of(sides: tuple[Side, ...], width: float) -> Side | None:
    """The tiles that choose for themselves; None: the image chooses as a whole.

    Args:
        sides: what the estimator can cut its outputs into.
        width: the mean share of the inputs that an output's mask holds.
    """
    if width >= WIDE or not sides:
        return None
    wanted: list[Side] = [OfChannel(8), 8, 4] if width >= MEDIUM else [4, 8]
    return next((side for side in wanted if side in sides), None)


def drawn_from(width: float) -> int:
    """How many effective images a tile's posterior must have for its images to be drawn."""
    return MANY_ALIKE if width >= ALIKE else MANY
