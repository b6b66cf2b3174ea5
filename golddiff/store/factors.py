"""Mean and covariance of a training set, of all its images and of its classes: made once, kept."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from golddiff.store.artifacts import Artifacts
from golddiff.store.statistics import Factor, default_images, images_in
from golddiff.system.errors import ArgumentError, StoreError

NAME = "factor-of-all"
Progress = Callable[[int], None]


class Images(Protocol):
    """What has images: an ImageStore, or shards of one."""

    n: int
    d: int
    artifacts: Artifacts

    def count_of(self, label: int | None) -> int:
        """How many images a class has, or all."""
        ...


def silent(done: int) -> None:
    """Progress that nobody watches."""


class Factors:
    """The factors of a training set.

    Args:
        images: the set, which is not kept alive by this.
        make: the set's factor of a class (None: all), of how many of its images (None: the
            default), by a seed of their draw.
        built: a file that was made with the store, and its checksum; None: there is none.
        check: raises where that file is no more of these images.
        keeps: whether results may be kept at this moment.
    """

    def __init__(
        self,
        images: Images,
        make: Callable[[Any, int | None, int | None, int, Progress], Factor],
        built: tuple[Path, str] | None = None,
        check: Callable[[Any], None] = lambda images: None,
        keeps: Callable[[], bool] = lambda: True,
    ) -> None:
        self._images: Images = weakref.proxy(images)
        self._make, self._built = make, built
        self._check, self._keeps = check, keeps
        self._made: dict[int | None, Factor] = {}

    def of(self, label: int | None, progress: Progress = silent) -> Factor:
        """The factor of a class, or of all images; that of all is kept with the store."""
        if label not in self._made:
            kept = self._kept() if label is None else None
            if kept is None:
                return self._new(label, None, 0, progress)
            self._made[label] = kept
        return self._made[label]

    def estimate(self, images: int | None, seed: int = 0, progress: Progress = silent) -> Factor:
        """Make the factor of all from some images, and keep it in place of the one there is.

        Denoisers that were made before keep the masks that they have.

        Args:
            images: how many, drawn at random without replacement; None for the default of
                :meth:`golddiff.ImageStore.factor`; as many as there are, or more, for all.
            seed: of the draw.
            progress: called with the number of images done.

        Raises:
            ArgumentError: ``images`` is no integer of 2 or more.
        """
        whole = isinstance(images, int) and not isinstance(images, bool)
        if images is not None and not (whole and images >= 2):
            raise ArgumentError(f"images: got {images!r}, expected a number of 2 or more, or None")
        return self._new(None, images, seed, progress)

    def is_kept(self) -> bool:
        """Whether the factor of all images need not be made."""
        return self._images.artifacts.head(NAME) is not None or self._built is not None

    def mark(self) -> str:
        """What tells the factor of all images from others; it is made where there is none."""
        if not self.is_kept():
            self.of(None)
        head = self._images.artifacts.head(NAME)
        if head is not None:
            return head["digest"]
        return self._built[1] if self._built is not None else self.of(None).digest

    def put(self, factor: Factor) -> None:
        """Take the factor of all images as given, and keep it."""
        self._made[None] = factor
        if self._keeps():
            made_of = {"of": str(factor.images)}
            self._images.artifacts.save(NAME, factor.tensors(), made_of)

    @property
    def images(self) -> int | None:
        """Of how many images the factor of all is; it is neither made nor read for this.

        None where that is not known.
        """
        if None in self._made:
            return self._made[None].images
        head = self._images.artifacts.head(NAME)
        if head is not None:
            return int(head["of"])
        if self._built is not None:
            return images_in(self._built[0], self._images.n)
        return default_images(self._images.n, self._images.d)

    def _new(self, label: int | None, images: int | None, seed: int, progress: Progress) -> Factor:
        factor = self._made[label] = self._make(self._images, label, images, seed, progress)
        if label is None:
            self.put(factor)
        return factor

    def _kept(self) -> Factor | None:
        tensors = self._images.artifacts.load(NAME)
        if tensors is not None:
            return self._sound(tensors, self._images.artifacts.path(NAME))
        if self._built is None:
            return None
        self._check(self._images)
        path = self._built[0]
        try:
            return self._sound(load_file(path), path)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise _damaged(path, error) from error

    def _sound(self, tensors: dict[str, NDArray[Any]], path: Path) -> Factor:
        try:
            factor = Factor.of_tensors(tensors, self._images.n)
            factor.check(self._images.d)
        except (TypeError, ValueError) as error:
            raise _damaged(path, error) from None
        return factor


def _damaged(path: Path, error: Exception) -> StoreError:
    return StoreError(f"store: {path} is damaged ({error}); build the store again")
