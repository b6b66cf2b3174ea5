"""Which golden subset each query gets at each noise level: the paper's schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence

from golddiff.noise import bits, normalised_noise, precision
from golddiff.store.nearest import Pixels, Pooled
from golddiff.store.proxy import quarter_shape, side_16_shape
from golddiff.store.training_set import TrainingSet
from golddiff.support import AnySupport, DescribedSupport, Prior, RandomSample, Support, stream_of
from golddiff.system.arguments import as_number
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, is_whole

Size = int | float


class PaperSchedule:
    """The golden subsets of the paper (Sec. 3.4, Eqs. 4 to 6) or of its released code.

    With g = sigma / sqrt(1 + sigma^2): the golden subset has k = k_min + (k_max - k_min) g images.

    ``variant="text"``: the m = m_min + (m_max - m_min)(1 - g) images nearest in a proxy pooled to
    a quarter of each side, of those the k nearest in all pixels.

    ``variant="released"``: m images drawn at random, m = k_max + (N - k_max)(1 - g); of those the
    k_max nearest in a proxy of side 16, of those the k nearest in all pixels. At high noise that
    is a random subset, in the text a nearest one. One draw serves all queries of a noise level
    (the released code draws for each query), so that a query's images do not depend on its batch.

    Args:
        k_min, k_max, m_min, m_max: an int counts images; a float in (0, 1] is a fraction of the
            images there are (of the class, when conditional). Of a k_min above k_max (the paper's
            Fig. 6 b) k is k_min at every noise level.
        variant: "text" or "released" (which does not use m_min and m_max).

    Raises:
        ArgumentError: a count below 1, a fraction outside (0, 1], another variant.
    """

    def __init__(
        self,
        k_min: Size = 1 / 20,
        k_max: Size = 1 / 10,
        m_min: Size = 1 / 10,
        m_max: Size = 1 / 4,
        variant: str = "text",
    ) -> None:
        if variant not in ("text", "released"):
            raise ArgumentError(f"variant: got {variant!r}, expected 'text' or 'released'")
        self.k_min, self.k_max = _checked_size("k_min", k_min), _checked_size("k_max", k_max)
        self.m_min, self.m_max = _checked_size("m_min", m_min), _checked_size("m_max", m_max)
        self.variant = variant

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(m, k): candidates screened and golden subset size, of n images at a noise level.

        1 <= k <= m <= n: where the sizes given say otherwise, k is at least 1 and m at least k.

        Raises:
            ArgumentError: a size given as a count is larger than n.
        """
        g = normalised_noise(sigma)
        k_min, k_max = (_resolve(a, getattr(self, a), n) for a in ("k_min", "k_max"))
        if self.variant == "text":
            m_min, m_max = (_resolve(a, getattr(self, a), n) for a in ("m_min", "m_max"))
            k = _floor(k_min + max(0.0, k_max - k_min) * g)
            m = _floor(m_min + (m_max - m_min) * (1 - g))
        else:
            k_low, k_high = max(1, _floor(k_min)), max(1, _floor(k_max))
            k = max(k_low, round(k_high - (k_high - k_low) * (1 - g)))
            m = min(n, max(k_high, round(k_high + (n - k_high) * (1 - g))))
        k = max(1, k)
        return max(m, k), k

    def supports(
        self, store: TrainingSet, x: F32, sigma: float, label: Prior, seed: int
    ) -> Sequence[AnySupport]:
        """The golden support of each query (b, D); a query's does not depend on the others.

        Under log weights (``label``) what is near is what the prior and the pixels make likely.
        """
        n = store.count_of(label)
        m, k = self.budgets(sigma, n)
        among: Support | DescribedSupport = store.everything(label)
        shape, nat = quarter_shape(store.shape), 1 / precision(sigma)
        if k == n:
            return [among] * len(x)
        if self.variant == "released":
            shape = side_16_shape(store.shape)
            if m < n:
                among = among.sampled(RandomSample(m, seeds_of(seed, sigma, label)))
        if among.log_weights is None:
            nat = 0.0
        pooled = Pooled(shape, nat * math.prod(shape) / store.d)
        screened = store.nearest(x, self.screened(sigma, n), pooled, among)
        return store.nearest(x, k, Pixels(nat), screened)

    def screened(self, sigma: float, n: int) -> int:
        """How many images the proxy lets through: m, and of the released code's pre-sample k_max.

        Raises:
            ArgumentError: as :meth:`budgets`.
        """
        m, k = self.budgets(sigma, n)
        return m if self.variant == "text" else max(k, _floor(_resolve("k_max", self.k_max, n)))

    def __repr__(self) -> str:
        return (
            f"PaperSchedule(k_min={self.k_min:g}, k_max={self.k_max:g}, m_min={self.m_min:g}, "
            f"m_max={self.m_max:g}, variant={self.variant!r})"
        )


def seeds_of(seed: int, sigma: float, label: Prior) -> tuple[int, ...]:
    """Of a random stream of its own for each noise level and class."""
    return seed, bits(sigma), stream_of(label)


def _checked_size(name: str, size: Size) -> Size:
    """The same as Python's number."""
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


def _resolve(name: str, size: Size, n: int) -> float:
    if isinstance(size, int):
        if size > n:
            raise ArgumentError(f"{name}: got {size}, but there are only {n} images")
        return float(size)
    return size * n


def _floor(value: float) -> int:
    # 0.1 * 50000 may round to just below 5000.
    return math.floor(value + 1e-9)
