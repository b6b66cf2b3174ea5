"""The constants of :mod:`.adaptive`, measured once: see ``docs/results/adaptive-rules.md``."""

from __future__ import annotations

from golddiff.support import OfChannel, Side

# Of what one image weighs of some hundred drawn, on average over the outputs: below, draws show
# their error and it falls as they grow; above, single images decide, and each tile looks for its.
SHARED = 0.25
WIDE = 0.5  # share of the inputs that masks hold: above, one support serves the whole image
MEDIUM = 0.25  # above, each 8x8 tile of a channel takes its nearest; below, each 4x4 tile

FEWEST = 1024  # images of a training set that is always weighed whole
SAMPLE = 8192  # images at random that the first are drawn from
AT_ONCE = 8  # times a sample: of fewer images all are compared, where an image has one logit
SAMPLE_GROWTH = 16  # times as many as the last sample are in the next
FIRST_DRAW = 256  # images drawn at first: the kernels take each of four groups in one piece
MOST_AT_ONCE = 8  # times as many images are drawn at once
# Times the images that a draw's estimate asks for: an image that two rounds both draw is weighed
# twice and counts no more, so that one round of many is better than two.
AIM = 1.3
FIRST_RING = 64  # nearest images, then as many again, then twice as many ...
# Images that are expected to be nearer than all that were weighed: of noise, of whose images an
# index holds a fifteenth, one query in a hundred took a wrong one.
OVERLOOKED = 0.01
# All images are weighed where more than such a share of them would be: an image that each tile
# weighs for itself takes about three times as long as one that the whole image weighs.
MOST, MOST_OF_TILES = 1 / 2, 1 / 8
# Weighed for a proof, in float64, an image takes a hundred times as long as in a full scan.
MOST_PROVED = 1 / 100

# The root mean square of what is still to come, in units of the last movement of the mean, from
# k / 2 to the nearest k, where movements are at right angles.
BEYOND = 1.4
UNKNOWN = 0.7  # the cosine that the first movement is taken to have with the next
GROWTH = 1.74  # of a movement's square to the next one's: errors fall as k^-0.4
LACKING = 1.4  # times the images of a tile that would do best are worth twice as many
USUAL = 60.0  # directions that the error of a draw lies in: 6 at high noise, 20 to 100 below
MARGIN = 1.4  # an estimate of the nearest times this must be within the tolerance


def side_of(sides: tuple[Side, ...], width: float) -> Side | None:
    """Of an estimator's tiles those that images are compared for; None: there are none.

    By the mean share of the inputs that an output's mask holds (``width``).
    """
    order: list[Side] = [OfChannel(8), 8, 4] if width >= MEDIUM else [4, 8]
    return next((side for side in order[width >= WIDE :] if side in sides), None)


def margin(directions: float) -> float:
    """What a draw's estimate is multiplied by, of an error that lies in so many directions.

    Of few, both the error and its estimate from three differences are often far from their means:
    about the root of the F distribution's 95 % with d and 3 d degrees of freedom.
    """
    return 1.1 + 5 / directions


def samples_of(images: int, one_logit: bool) -> list[int]:
    """How many images are compared, stage after stage; the last time all.

    Where an image has one logit an index compares 16 in the time that one is weighed, so a sample
    saves nothing unless it is a small part of all.
    """
    least = AT_ONCE if one_logit else 2
    sizes = [SAMPLE]
    while sizes[-1] < images:
        sizes.append(sizes[-1] * SAMPLE_GROWTH)
    return [size for size in sizes if least * size <= images] + [images]
