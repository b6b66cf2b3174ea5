"""The novelty dial: from copies of the training images to new ones, by one number.

PCA's mask threshold decides how much of an image a pixel is matched by: with wide masks (threshold
near 0) whole training images come back, with narrow ones new images are put together from pieces.
Its right value differs a hundredfold between data sets. Here it is measured for a store: a few
small runs from the same noise, one a threshold, and how new their pictures are.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch

from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.pca import PCA
from golddiff.estimators.shared import UnitMasks, advised_share, is_grey
from golddiff.noise import Labels, Sigma
from golddiff.samplers import initial_noise, noise_levels, steps
from golddiff.store.images import ImageStore, StoreOrPath, opened
from golddiff.store.novelty import Watch
from golddiff.store.novelty import novelty as novelty_of
from golddiff.supports.paper import PaperSchedule
from golddiff.system.arguments import as_number
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F64
from golddiff.system.progress import waiting

NOVELTY = 0.7  # new, and whole: the default
# The name changes with what is kept in it and how that is found: an older file is not read.
KEPT = "dial-8"
THRESHOLDS = tuple(float(f"{0.0002 * 1.8**i:.2g}") for i in range(13))  # 0.0002 to 0.23
STEPS, SEED = 10, 1
FEW, MORE = 64, 128  # images a golden subset: of more the pictures are blurred, and take longer
GREY_FEW, GREY_MORE = 16, 32  # of grey images, which are blurred sooner
LEAST, MOST = 4_000, 10_000  # candidates at high and at low noise, of large sets

_dials: WeakKeyDictionary[ImageStore, Dial] = WeakKeyDictionary()


def recommended(
    store: StoreOrPath,
    novelty: float = NOVELTY,
    seed: int = 0,
    *,
    progress: bool = True,
) -> GoldDiff:
    """The denoiser that we advise for pictures: as new as you ask for, from your own images.

    GoldDiff over PCA with one softmax for the values of a neighbourhood, so that what belongs
    together comes from the same images; the schedule of the paper's text, the nearest 64 to 128
    images a golden subset, 16 to 32 of grey ones; and the mask threshold that gives pictures of
    that novelty, measured once a store and kept with it: see :func:`dial`. Of images of 32 x 32
    that takes seconds; of 64 x 64 half a minute for 300 of them, some minutes for thousands.

    Args:
        store: the training set.
        novelty: 0 to 1. 0: training images again; 1: as far from the training images as these are
            from each other, where the images allow it. See :func:`golddiff.novelty`.
        seed: of golden subsets that are drawn at random; these are not, so it changes nothing.
        progress: show a bar while it is measured, on a terminal or in a notebook.

    Raises:
        ArgumentError: a novelty outside 0 to 1; a store of one image.
    """
    if not 0 <= as_number(novelty) <= 1:
        raise ArgumentError(f"novelty: got {novelty!r}, expected a number from 0 to 1")
    store = opened(store)
    return at_threshold(store, dial_with_bar(store, progress).threshold(novelty), seed)


def at_threshold(store: ImageStore, threshold: float, seed: int = 0) -> GoldDiff:
    """What :func:`recommended` is made of, with a mask threshold."""
    few, more = (GREY_FEW, GREY_MORE) if is_grey(store.shape) else (FEW, MORE)
    k_min: float = few
    k_max: float = more
    if min(map(store.count_of, store.classes), default=store.n) < more:  # fractions of a class
        k_min, k_max = max(1 / 20, min(1.0, few / store.n)), max(1 / 10, min(1.0, more / store.n))
    m_min, m_max = min(1 / 10, LEAST / store.n), min(1 / 4, MOST / store.n)
    schedule = PaperSchedule(k_min, k_max, m_min, m_max)
    return GoldDiff(PCA(store, threshold, share=advised_share(store.shape)), schedule, seed)


@dataclass(frozen=True)
class Dial:
    """How new a store's pictures are at each mask threshold."""

    thresholds: F64  # (T,) float64, ascending
    novelty: F64  # (T,) float64, mean novelty of the pictures, made not to fall

    def threshold(self, novelty: float) -> float:
        """The mask threshold whose pictures are as new, to two digits; the widest that reaches it.

        Interpolated between those measured. 0 for 0; where none is so new, that of the newest.
        """
        if novelty <= 0:
            return 0.0
        reached = int(np.searchsorted(self.novelty, min(novelty, self.novelty[-1])))
        if reached == 0:
            found = self.thresholds[0] * novelty / max(novelty, self.novelty[0])
        else:
            around = slice(reached - 1, reached + 1)
            logs = np.log(self.thresholds[around])
            found = np.exp(np.interp(novelty, self.novelty[around], logs))
        return float(f"{found:.2g}")  # so that rounding elsewhere does not show


def is_measured(store: ImageStore) -> bool:
    """Whether the store's dial is known: here, in its folder or, of built-in images, shipped."""
    kept = store.artifacts
    return store in _dials or any(one.head(KEPT) for one in (kept, kept.shipped()))


def dial(store: ImageStore, watch: Watch = lambda done, total: None) -> Dial:
    """The store's dial: measured at the first call, and kept in its folder where that is allowed.

    Args:
        store: the training set.
        watch: called with the parts done, and how many there are.
    """
    store = opened(store)
    if store not in _dials:
        kept = store.artifacts.load(KEPT) or store.artifacts.shipped().load(KEPT)
        if kept is None:
            _dials[store] = _measured(store, watch)
            store.artifacts.save(KEPT, vars(_dials[store]))
        else:
            _dials[store] = Dial(kept["thresholds"], kept["novelty"])
    return _dials[store]


def dial_with_bar(store: ImageStore, shown: bool = True) -> Dial:
    """As :func:`dial`, with a bar while it is measured."""
    with waiting("measuring novelty, once for this store", shown and not is_measured(store)) as bar:
        return dial(store, bar)


def _measured(store: ImageStore, watch: Watch) -> Dial:
    # The more, the truer: few only of large images, which take seconds each.
    each, count = min(16, max(5, (1 << 15) // store.d)), len(THRESHOLDS)
    watch(0, count * STEPS)
    start = initial_noise(each, store.shape, SEED).repeat(count, *[1] * len(store.shape))
    *_, last = steps(_Ladder(store, watch), start, noise_levels(STEPS, "ddim"))
    means = novelty_of(last.x0, store).novelty.reshape(count, each).mean(dim=1).numpy()
    return Dial(np.array(THRESHOLDS), np.maximum.accumulate(means))


@dataclass
class _Ladder:
    """A batch of as many parts as there are thresholds, each denoised with its own.

    The thresholds go through a noise level together: its Wiener matrix is made once.
    """

    store: ImageStore
    watch: Watch
    done: int = 0

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """E[x0 | x], as :meth:`golddiff.denoiser.Denoiser.__call__`, of a whole batch."""
        level, shape, parts = float(sigma), self.store.shape, []
        masks = UnitMasks.of_thresholds(
            self.store.factors.averaged(), level, np.array(THRESHOLDS), shape, advised_share(shape)
        )
        for threshold, its, part in zip(THRESHOLDS, masks, x.chunk(len(THRESHOLDS)), strict=True):
            denoiser = at_threshold(self.store, threshold)
            assert isinstance(denoiser.base, PCA)
            denoiser.base.ready(level, its)
            parts.append(denoiser(part, level))
            self.done += 1
            self.watch(self.done, STEPS * len(THRESHOLDS))
        return torch.cat(parts)
