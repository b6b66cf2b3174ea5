"""The novelty dial: one number from 0 (copies of training images) to 1 (new images).

PCA's mask threshold decides how large a neighbourhood each pixel is matched by. Wide masks
(threshold near 0) return whole training images; narrow masks assemble new images from pieces. The
best threshold differs a hundredfold between data sets, so it is calibrated for each store: small
runs from the same noise, one per threshold, measure the novelty of their pictures. The dial ends
where pictures are blurred, which happens with diverse photographs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch

from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.masks import unit_counts
from golddiff.estimators.pca import PCA
from golddiff.estimators.shared import UnitMasks, advised_share, are_strokes, is_grey, units_of
from golddiff.metrics import sharpness
from golddiff.noise import Labels, Sigma
from golddiff.samplers import initial_noise, noise_levels, steps
from golddiff.store.images import ImageStore, StoreOrPath, opened
from golddiff.store.novelty import Watch, spacing
from golddiff.store.novelty import novelty as novelty_of
from golddiff.supports.paper import PaperSchedule
from golddiff.system.arguments import check_novelty
from golddiff.system.numbers import F64
from golddiff.system.progress import waiting

NOVELTY = 0.7  # the default: new pictures that are still coherent
# The artifact's name; a new version number, so that files of older code are not read.
ARTIFACT = "dial-13"
THRESHOLDS = tuple(float(f"{0.0002 * 1.8**i:.2g}") for i in range(13))  # 0.0002 to 0.23
STEPS, SEED = 10, 1
SHARP = 0.4  # sharpness of pictures, relative to the sharpest, below which they are blurred
K_MIN, K_MAX = 64, 128  # images in a golden subset; more would blur the pictures and take longer
GREY_K_MIN, GREY_K_MAX = 16, 32  # the same for grey images, which blur sooner
M_MIN, M_MAX = 4_000, 10_000  # candidates screened at high and at low noise, in large sets

_dials: WeakKeyDictionary[ImageStore, Dial] = WeakKeyDictionary()


def recommended(
    store: StoreOrPath, novelty: float = NOVELTY, seed: int = 0, *, progress: bool = True
) -> GoldDiff:
    """The denoiser that we advise for pictures, at the novelty you choose.

    GoldDiff over PCA, with one softmax per neighbourhood, so that adjacent values come from the
    same images. The schedule is that of the paper's text, with the nearest 64 to 128 images in a
    golden subset, 16 to 32 for grey images, and all for points or a smaller class. The mask
    threshold gives pictures of the requested novelty. It is calibrated once per store and saved
    with it, see :func:`dial`: this takes seconds for images of 32 x 32 and some twenty seconds for
    64 x 64.

    Args:
        store: the training set.
        novelty: 0 to 1. 0: copies of training images; 1: as far from the training images as these
            are from each other, if the images allow it: with diverse photographs, pictures blur
            before. See :func:`golddiff.novelty`.
        seed: seed of random golden subsets; this schedule draws none, so it has no effect.
        progress: show a progress bar during calibration, on a terminal, or in a notebook with
            ipywidgets.

    Raises:
        ArgumentError: the novelty is outside 0 to 1, or the store has a single image.
    """
    novelty, store = check_novelty(novelty), opened(store)
    return at_threshold(store, dial_with_bar(store, progress).threshold(novelty), seed)


def at_threshold(store: ImageStore, threshold: float, seed: int = 0) -> GoldDiff:
    """The denoiser of :func:`recommended` at a given mask threshold."""
    k_min, k_max = (GREY_K_MIN, GREY_K_MAX) if is_grey(store.shape) else (K_MIN, K_MAX)
    if len(store.shape) == 1:  # in few dimensions the nearest at high noise are the outermost
        k_min = k_max = store.n
    m_min, m_max = min(1 / 10, M_MIN / store.n), min(1 / 4, M_MAX / store.n)
    schedule = PaperSchedule(k_min, k_max, m_min, m_max)
    return GoldDiff(PCA(store, threshold, share=_share(store)), schedule, seed)


def _share(store: ImageStore) -> str:
    """The ``share`` of PCA: fitted differences leave a faint haze on grey images' black ground."""
    return "pixel" if are_strokes(store) else advised_share(store.shape)


@dataclass(frozen=True)
class Dial:
    """The novelty of a store's pictures as a function of the mask threshold."""

    thresholds: F64  # (T,) float64, ascending; at the last, pictures are barely sharp
    novelty: F64  # (T,) float64, mean novelty of the pictures, made non-decreasing

    def threshold(self, novelty: float) -> float:
        """The smallest mask threshold whose pictures reach a novelty, to two digits.

        Interpolated between measurements; 0 gives 0, values above the highest give its threshold.
        """
        if novelty <= 0:
            return 0.0
        reached = int(np.searchsorted(self.novelty, min(novelty, self.novelty[-1])))
        if reached == 0:
            threshold = self.thresholds[0] * novelty / max(novelty, self.novelty[0])
        else:
            bracket = slice(reached - 1, reached + 1)
            logs = np.log(self.thresholds[bracket])
            threshold = np.exp(np.interp(novelty, self.novelty[bracket], logs))
        return float(f"{threshold:.2g}")  # two digits hide most differences between processors


def is_measured(store: ImageStore) -> bool:
    """Whether the store's dial is in memory, in its folder or, for built-in images, shipped."""
    artifacts = store.artifacts
    return store in _dials or any(a.head(ARTIFACT) for a in (artifacts, artifacts.shipped()))


def dial(store: ImageStore, watch: Watch = lambda done, total: None) -> Dial:
    """The store's dial, measured at the first call and saved in its folder if that is writable.

    ``watch`` is called with the number of parts done and their total.
    """
    if store not in _dials:
        saved = store.artifacts.load(ARTIFACT) or store.artifacts.shipped().load(ARTIFACT)
        if saved is None:
            _dials[store] = _measure(store, watch)
            store.artifacts.save(ARTIFACT, vars(_dials[store]))
        else:
            _dials[store] = Dial(saved["thresholds"], saved["novelty"])
    return _dials[store]


def dial_with_bar(store: ImageStore, shown: bool = True) -> Dial:
    """:func:`dial` with a progress bar during the measurement."""
    with waiting("measuring novelty, once for this store", shown and not is_measured(store)) as bar:
        return dial(store, bar)


def _measure(store: ImageStore, watch: Watch) -> Dial:
    spacing(store)  # raises at once for a single image
    # More pictures measure more precisely; large images take seconds each, so fewer are drawn.
    pictures, count = min(16, max(5, (1 << 15) // store.d)), len(THRESHOLDS)
    watch(0, count * STEPS)
    start = initial_noise(pictures, store.shape, SEED).repeat(count, *[1] * len(store.shape))
    *_, last = steps(_EveryThreshold(store, watch), start, noise_levels(STEPS, "ddim"))
    means = novelty_of(last.x0, store).novelty.reshape(count, pictures).mean(dim=1).numpy()
    place = _places(_relative_sharpness(last.x0.chunk(count)))
    between = np.exp(np.interp(place, range(count), np.log(THRESHOLDS)))
    # Three digits hide rounding differences between processors, and keep THRESHOLDS exact.
    thresholds = np.array([float(f"{t:.3g}") for t in between])
    return Dial(thresholds, np.maximum.accumulate(np.interp(place, range(count), means)))


def _relative_sharpness(pictures: Sequence[torch.Tensor]) -> F64:
    """The sharpness of each threshold's pictures, 1 for the sharpest; all 1 if it has no meaning.

    It has none for points, images of fewer than 3 x 3 pixels, and images of one colour.
    """
    if pictures[0].ndim != 4 or min(pictures[0].shape[2:]) < 3:
        return np.ones(len(pictures))
    values = np.array([sharpness(batch, pictures[0]) for batch in pictures])
    return values / values.max() if np.isfinite(values).all() else np.ones(len(pictures))


def _places(sharp: F64) -> F64:
    """The places in ``THRESHOLDS`` of a dial, whole numbers and the last one interpolated.

    The last is the place where the sharpness falls below ``SHARP`` for good.
    """
    last = int(np.flatnonzero(sharp >= SHARP)[-1])
    if last == len(sharp) - 1:
        return np.arange(last + 1.0)
    fall = (sharp[last] - SHARP) / (sharp[last] - sharp[last + 1])
    return np.append(np.arange(last + 1.0), last + fall)


@dataclass
class _EveryThreshold:
    """A denoiser that splits its batch into one chunk per threshold.

    All thresholds share the Wiener matrix of a noise level, which is computed once.
    """

    store: ImageStore
    watch: Watch
    done: int = 0

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """E[x0 | x], as :meth:`golddiff.denoiser.Denoiser.__call__`, of a whole batch."""
        level, shape, share, outputs = float(sigma), self.store.shape, _share(self.store), []
        factor, thresholds = self.store.factors.averaged(), np.array(THRESHOLDS)
        every_counts = unit_counts(factor, level, thresholds, units_of(shape, share))
        chunks = x.chunk(len(THRESHOLDS))
        for threshold, counts, chunk in zip(THRESHOLDS, every_counts, chunks, strict=True):
            denoiser = at_threshold(self.store, threshold)
            denoiser.base.ready(level, UnitMasks.of_counts(counts, shape, share))
            outputs.append(denoiser(chunk, level))
            self.done += 1
            self.watch(self.done, STEPS * len(THRESHOLDS))
        return torch.cat(outputs)
