"""How many bytes a step moves between the shards and the driver: the formula.

Each of S shards receives the queries and returns a partial posterior, once a step; a golden support
adds counts. For b queries of D values and an estimator of L locations:

    bytes = S b (4 D + 8 (2 L + D)) + 4 * 256 H + 500 C,

with H the histograms that were sent back (one a shard, query, tile, cut and round of the search:
at most 8 rounds, usually 2 to 4, since each divides the candidates by up to 256) and C the calls
(their names, recipes and envelopes). N is not in it. L is 1 for Optimal, H W for Kamb, D for PCA.
"""

from __future__ import annotations

from golddiff.cluster.search import BINS

ENVELOPE = 500


def step_bytes(
    shards: int, queries: int, d: int, locations: int, histograms: int, calls: int
) -> int:
    """The formula above; see there.

    Args:
        shards: S.
        queries: b.
        d: D, values of an image.
        locations: L of the estimator.
        histograms: H.
        calls: C.
    """
    partial = 8 * (2 * locations + d)
    return shards * queries * (4 * d + partial) + 4 * BINS * histograms + ENVELOPE * calls
