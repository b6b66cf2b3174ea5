"""Mean and covariance factors of a training set and of its classes, computed once and cached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from golddiff.store.statistics import LARGE, Factor
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import check_seed, is_whole

BUILT = "factor"  # artifact written when the store is built
NAME = "factor-of-all"  # artifact computed later, which takes precedence
CLASSES_KEPT = 16  # classes whose factors stay in memory: 130 MB each for 1,300 of 3 x 64 x 64
SAMPLE_SIZE, SAMPLE_KEY = 2048, -1  # size of the small sample, and its key among the class labels
Progress = Callable[[int], None]


def silent(done: int) -> None:
    """A progress callback that does nothing."""


class Factors:
    """The factors of a training set, by class; they are cached on the training set itself."""

    def __init__(self, images: Any) -> None:
        self._images = images
        self._computed: dict[int | None, Factor] = images._factors

    def of(self, label: int | None, progress: Progress = silent) -> Factor:
        """The factor of a class, or of all images for None, which is also saved in the folder."""
        factor = self._computed.get(label)
        if factor is None and label is None and (factor := self._load()):
            self._computed[None] = factor
        return factor or self._fit(label, None, 0, progress)

    def averaged(self) -> Factor:
        """The factor for averaged masks: of all images, or of a small sample if images are large.

        For 20,000 images of 12,288 values, the full factor takes minutes, and each noise level's
        matrix takes time proportional to the rank. A single output's mask needs that precision;
        averages over a neighbourhood do not.
        """
        if not self.averaged_from_sample:
            return self.of(None)
        if SAMPLE_KEY not in self._computed:
            self._computed[SAMPLE_KEY] = self._images._make_factor(None, SAMPLE_SIZE, 0, silent)
        return self._computed[SAMPLE_KEY]

    def averaged_identifier(self) -> str:
        """Identifier of :meth:`averaged`; constant for the sample, which is not computed here."""
        return f"of {SAMPLE_SIZE}" if self.averaged_from_sample else self.identifier()

    @property
    def averaged_from_sample(self) -> bool:
        """Whether :meth:`averaged` uses the small sample."""
        return bool(self._images.d > LARGE and self._images.n > SAMPLE_SIZE)

    def estimate(self, images: int | None, seed: int = 0, progress: Progress = silent) -> Factor:
        """Recompute the factor of the whole set from some of its images and save it.

        Existing denoisers keep their masks.

        Args:
            images: number of images, drawn at random without replacement; None for the default of
                :meth:`golddiff.ImageStore.factor`. All images are used if there are no more.
            seed: seed of the draw.
            progress: called with the number of images processed.
        """
        if images is not None and not (is_whole(images) and images >= 2):
            raise ArgumentError(f"images: got {images!r}, expected a number of 2 or more, or None")
        return self._fit(None, images, check_seed(seed), progress)

    def is_saved(self) -> bool:
        """Whether the factor of all images is saved."""
        return self._head() is not None

    def identifier(self) -> str:
        """Identifier of the factor of all images, which is computed if none is saved.

        The factor in use comes first: another process may have replaced the saved one.
        """
        head = None if None in self._computed else self._head()
        return self.of(None).digest if head is None else head["digest"]

    def put(self, factor: Factor) -> None:
        """Set the factor of all images and save it."""
        self._computed[None] = factor
        if self._images.share == 1:
            self._images.artifacts.save(NAME, factor.tensors(), {"of": str(factor.images)})

    def _fit(self, label: int | None, images: int | None, seed: int, progress: Progress) -> Factor:
        factor: Factor = self._images._make_factor(label, images, seed, progress)
        self._computed[label] = factor
        if label is None:
            self.put(factor)
        classes = [key for key in list(self._computed) if key not in (None, SAMPLE_KEY)]
        for oldest in classes[:-CLASSES_KEPT]:
            self._computed.pop(oldest, None)  # another thread may have deleted it
        return factor

    def _head(self) -> dict[str, str] | None:
        artifacts = self._images.artifacts
        return artifacts.head(NAME) or artifacts.head(BUILT)

    def _load(self) -> Factor | None:
        for tensors in map(self._images.artifacts.load, (NAME, BUILT)):
            factor = None if tensors is None else Factor.of_tensors(tensors, self._images.d)
            if factor is not None:
                return factor
        return None
