"""Mean and covariance of a training set, of all its images and of its classes: made once, kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from golddiff.store.statistics import LARGE, Factor, default_images
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import is_whole

BUILT = "factor"  # made with the store
NAME = "factor-of-all"  # made since, in place of it
FEW, OF_FEW = 2048, -1  # images, and what stands for them beside classes
Progress = Callable[[int], None]


def silent(done: int) -> None:
    """Progress that nobody watches."""


class Factors:
    """The factors of a training set, which holds those that are made, by class."""

    def __init__(self, images: Any) -> None:
        self._images = images
        self._made: dict[int | None, Factor] = images._factors

    def of(self, label: int | None, progress: Progress = silent) -> Factor:
        """The factor of a class, or of all images; that of all is kept with the store."""
        if label not in self._made:
            kept = self._kept() if label is None else None
            if kept is None:
                return self._new(label, None, 0, progress)
            self._made[label] = kept
        return self._made[label]

    def averaged(self) -> Factor:
        """That of all images for masks that are averaged; of few of them where images are large.

        Of 20,000 images of 12,288 values the whole factor takes minutes, and each noise level's
        matrix as many as its rank. Averages over a neighbourhood do not need it; a single output's
        mask does.
        """
        if not self.averages_few:
            return self.of(None)
        if OF_FEW not in self._made:
            self._made[OF_FEW] = self._images._make_factor(None, FEW, 0, silent)
        return self._made[OF_FEW]

    def averaged_mark(self) -> str:
        """Identifies it; that of few images is always the same, so it need not be made."""
        return f"of {FEW}" if self.averages_few else self.mark()

    @property
    def averages_few(self) -> bool:
        """Whether it is of few of the images."""
        return bool(self._images.d > LARGE and self._images.n > FEW)

    def estimate(self, images: int | None, seed: int = 0, progress: Progress = silent) -> Factor:
        """Make the factor of all from some images, and keep it in place of the one there is.

        Denoisers that were made before keep the masks that they have.

        Args:
            images: how many, drawn at random without replacement; None for the default of
                :meth:`golddiff.ImageStore.factor`; as many as there are, or more, for all.
            seed: of the draw.
            progress: called with the number of images done.
        """
        if images is not None and not (is_whole(images) and images >= 2):
            raise ArgumentError(f"images: got {images!r}, expected a number of 2 or more, or None")
        return self._new(None, images, seed, progress)

    def is_kept(self) -> bool:
        """Whether the factor of all images need not be made."""
        return self._head() is not None

    def mark(self) -> str:
        """Identifies the factor of all images; it is made where there is none.

        Of the one in use, if any: another process may have kept another one since.
        """
        head = None if None in self._made else self._head()
        return self.of(None).digest if head is None else head["digest"]

    def put(self, factor: Factor) -> None:
        """Take the factor of all images as given, and keep it."""
        self._made[None] = factor
        if self._images.share == 1:
            self._images.artifacts.save(NAME, factor.tensors(), {"of": str(factor.images)})

    @property
    def images(self) -> int:
        """Of how many images the factor of all is; it is neither made nor read for this."""
        if None in self._made:
            return self._made[None].images
        of = (self._head() or {}).get("of", "")
        n, d = self._images.n, self._images.d
        return int(of) if of.isdecimal() else default_images(n, d)

    def _new(self, label: int | None, images: int | None, seed: int, progress: Progress) -> Factor:
        factor: Factor = self._images._make_factor(label, images, seed, progress)
        self._made[label] = factor
        if label is None:
            self.put(factor)
        return factor

    def _head(self) -> dict[str, str] | None:
        heads = map(self._images.artifacts.head, (NAME, BUILT))
        return next((head for head in heads if head is not None), None)

    def _kept(self) -> Factor | None:
        for tensors in map(self._images.artifacts.load, (NAME, BUILT)):
            factor = None if tensors is None else Factor.of_tensors(tensors, self._images.d)
            if factor is not None:
                return factor
        return None
