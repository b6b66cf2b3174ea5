"""The paper's schedule: the size and choice of golden subsets at each noise level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from golddiff.noise import normalised_noise, precision, seed_of_sigma
from golddiff.store.nearest import Pixels, Pooled
from golddiff.store.proxy import quarter_shape, side_16_shape
from golddiff.store.training_set import TrainingSet
from golddiff.support import AnySupport, Prior, RandomSample, RuleSupport, Support, stream_of
from golddiff.system.arguments import as_number, check_positive
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, check_count, is_whole

Size = int | float


@dataclass(eq=False)
class PaperSchedule:
    """The golden subsets of the paper (Sec. 3.4, Eqs. 4 to 6) or of its released code.

    With g = sigma / sqrt(1 + sigma^2), a golden subset has k = k_min + (k_max - k_min) g images.

    ``variant="text"`` screens the m = m_min + (m_max - m_min)(1 - g) nearest images in a proxy
    pooled to a quarter of each side, and keeps the k of them that are nearest in all pixels.

    ``variant="released"`` draws m = k_max + (N - k_max)(1 - g) images at random, screens the k_max
    nearest of them in a proxy of side 16, and keeps the k nearest in all pixels. At high noise this
    is a random subset, where the text takes the nearest. All queries of a noise level share one
    draw, so that a query's subset does not depend on its batch; the released code draws per query.

    Args:
        k_min, k_max, m_min, m_max: an int is a number of images, or all of them if there are fewer;
            a float in (0, 1] is a fraction of all (of the class, when conditional). If k_min is
            above k_max (the paper's Fig. 6 b), k is k_min at every noise level, and "released"
            raises k_max to k_min.
        variant: "text" or "released" (which ignores m_min and m_max).

    Raises:
        ArgumentError: a count is below 1, a fraction is outside (0, 1], or the variant is unknown.
    """

    k_min: Size = 1 / 20
    k_max: Size = 1 / 10
    m_min: Size = 1 / 10
    m_max: Size = 1 / 4
    variant: str = "text"

    def __post_init__(self) -> None:
        if self.variant not in ("text", "released"):
            raise ArgumentError(f"variant: got {self.variant!r}, expected 'text' or 'released'")
        for name in ("k_min", "k_max", "m_min", "m_max"):
            setattr(self, name, _checked_size(name, getattr(self, name)))

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(m, k): number of candidates and golden subset size, out of n images at a noise level.

        1 <= k <= m <= n: k is raised to at least 1, and m to at least k.

        Raises:
            ArgumentError: sigma is not above 0, or n is below 1.
        """
        sigma, n = check_positive("sigma", sigma), check_count("n", n)
        g = normalised_noise(sigma)
        k_min, k_max = (_resolve(size, n) for size in (self.k_min, self.k_max))
        if self.variant == "text":
            m_min, m_max = (_resolve(size, n) for size in (self.m_min, self.m_max))
            k = _floor(k_min + max(0.0, k_max - k_min) * g)
            m = _floor(m_min + (m_max - m_min) * (1 - g))
        else:
            k_low = max(1, _floor(k_min))
            k_high = max(k_low, _floor(k_max))
            k = round(k_high - (k_high - k_low) * (1 - g))
            m = round(k_high + (n - k_high) * (1 - g))
        k = max(1, k)
        return max(m, k), k

    def supports(
        self, store: TrainingSet, x: F32, sigma: float, label: Prior, seed: int
    ) -> Sequence[AnySupport]:
        """The golden support of each query (b, D), independent of the other queries.

        If ``label`` is a prior with log weights, images are ranked by prior times likelihood.
        """
        n = store.count_of(label)
        m, k = self.budgets(sigma, n)
        candidates: Support | RuleSupport = store.everything(label)
        shape, distance_per_nat = quarter_shape(store.shape), 1 / precision(sigma)
        if self.variant == "released":
            shape = side_16_shape(store.shape)
            if m < n:
                seeds = seed, seed_of_sigma(sigma), stream_of(label)
                candidates = candidates.sampled(RandomSample(m, seeds))
        pooled = Pooled(shape, distance_per_nat * math.prod(shape) / store.d)
        screened = store.nearest(x, self.screened(sigma, n), pooled, candidates)
        return store.nearest(x, k, Pixels(distance_per_nat), screened)

    def screened(self, sigma: float, n: int) -> int:
        """Number of images kept by the proxy: m, or k_max for the released variant.

        Raises:
            ArgumentError: as in :meth:`budgets`.
        """
        m, k = self.budgets(sigma, n)
        return m if self.variant == "text" else max(k, _floor(_resolve(self.k_max, n)))


def _checked_size(name: str, size: Size) -> Size:
    """The size as a Python int or float."""
    if is_whole(size):
        if size < 1:
            raise ArgumentError(f"{name}: got {size} images, expected 1 or more")
        return int(size)
    fraction = as_number(size)
    if math.isnan(fraction):
        raise ArgumentError(f"{name}: got {size!r}, expected a count (int) or a fraction (float)")
    if not 0 < fraction <= 1:
        raise ArgumentError(
            f"{name}: got the fraction {size}, expected above 0 and at most 1 "
            "(give an int for a count of images)"
        )
    return fraction


def _resolve(size: Size, n: int) -> float:
    return float(min(size, n)) if isinstance(size, int) else size * n


def _floor(value: float) -> int:
    # Rounding may put fraction * n just below a whole number.
    return math.floor(value + 1e-9)
