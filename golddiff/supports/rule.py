"""Constants and rules of :mod:`.adaptive`, from ``docs/results/adaptive.md``."""

from __future__ import annotations

from golddiff.support import OfChannel, Side

# Largest weight share of one image among a few hundred draws, averaged over the outputs. Below it,
# draws estimate their error well; above it, a few images dominate and tiles take their nearest.
DECISIVE_SHARE = 0.25
WIDE_MASKS = 0.5  # share of inputs in a mask; above it, one support serves the whole image
MEDIUM_MASKS = 0.25  # above it, tiles are 8x8 pixels of one channel; below it, 4x4 pixels

MIN_IMAGES = 1024  # training sets of at most this size are weighed whole
FIRST_SAMPLE = 8192  # size of the random sample that the first draws come from
MIN_SAMPLE_RATIO = 8  # smallest ratio of all images to a sample, for estimators with one logit
SAMPLE_GROWTH = 16  # ratio of the next sample's size to the last
FIRST_DRAW = 256  # images in the first round of draws; its four groups fit one kernel block each
MAX_DRAW_GROWTH = 8  # largest growth of the number of draws per round
# Factor on the number of draws that an estimate asks for: an image drawn in two rounds is weighed
# twice without benefit, so one large round is better than two.
DRAW_OVERSHOOT = 1.3
FIRST_RING = 64  # size of the first two rings of nearest images; later rings double the total
# Largest expected number of images nearer than all weighed ones. At this value about 1% of the
# queries on noise images, which the index describes worst, were answered from a wrong image.
MAX_OVERLOOKED = 0.01
# Above these shares of the images all are weighed; an image that is weighed separately for each
# tile takes about three times as long as one that is weighed for the whole image.
MAX_SHARE_DRAWN, MAX_SHARE_OF_TILES = 1 / 2, 1 / 8
# For a proof, an image is weighed in float64, which takes 100 times as long as in a full scan.
MAX_SHARE_PROVED = 1 / 100

# Root mean square of the remaining movement of the mean, relative to its last movement (from the
# nearest k / 2 to the nearest k images), for orthogonal movements.
REMAINING_MOVEMENT = 1.4
DECAY = 1.74  # ratio of a movement's square to the next one's; errors fall as k^-0.4
MIN_LACKING = 1.4  # a tile doubles its images if its best count is this many times its count
PRIOR_DIRECTIONS = 60.0  # typical rank of a draw's error: 6 at high noise, 20 to 100 below
NEAREST_MARGIN = 1.4  # factor on the error estimate of nearest images before the test with tol


def side_of(sides: tuple[Side, ...], width: float) -> Side | None:
    """The tile side to rank images for, out of an estimator's ``sides``; None: no tiles.

    ``width`` is the mean share of the inputs in an output's mask.
    """
    order: list[Side] = [OfChannel(8), 8, 4] if width >= MEDIUM_MASKS else [4, 8]
    return next((side for side in order[width >= WIDE_MASKS :] if side in sides), None)


def margin(directions: float) -> float:
    """Safety factor on the error estimate of a draw, whose error lies in d ``directions``.

    It approximates the root of the 95% quantile of the F distribution with d and 3 d degrees of
    freedom. If d is small, the error and its estimate from three contrasts vary widely.
    """
    return 1.1 + 5 / directions


def samples_of(images: int, joint: bool) -> list[int]:
    """The sizes of the random samples that are compared first, ascending.

    With one logit per image (``joint``), the index compares 16 images in the time that one is
    weighed. A sample then saves time only if it is a small part of all images.
    """
    min_ratio = MIN_SAMPLE_RATIO if joint else 2
    sizes = [FIRST_SAMPLE]
    while sizes[-1] < images:
        sizes.append(sizes[-1] * SAMPLE_GROWTH)
    return [size for size in sizes if min_ratio * size <= images]
