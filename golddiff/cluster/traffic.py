"""How many bytes a step moves between the shards and the driver: the formula.

Each of S shards receives the queries and returns a partial posterior, once a step; a golden support
adds counts. For b queries of D values and an estimator of L locations:

    bytes = S b (4 D + 8 (2 L + D)) + 4 * 256 H + C (500 + 30 P),

with H the histograms that were sent back (one a shard, query, tile, cut and round of the search:
at most 8 rounds, usually 2 to 4, since each divides the candidates by up to 256), C the calls
(their names, recipes and envelopes) and P the problems, one a query and tile that choose their
images: a call carries two to six numbers of each. A full scan has none. N is not in it. L is 1 for
Optimal, H W for Kamb, D for PCA.
"""

from __future__ import annotations

from golddiff.cluster.search import BINS

ENVELOPE = 500
PROBLEM = 30  # between a cut's two numbers and a draw's six


def step_bytes(
    shards: int, queries: int, d: int, locations: int, histograms: int, calls: int, problems: int
) -> int:
    """The formula above; see there.

    Args:
        shards: S.
        queries: b.
        d: D, values of an image.
        locations: L of the estimator.
        histograms: H.
        calls: C.
        problems: P.
    """
    partial = 8 * (2 * locations + d)
    each = ENVELOPE + PROBLEM * problems
    return shards * queries * (4 * d + partial) + 4 * BINS * histograms + each * calls
