"""``golddiff.sample``: a sampling run in batches, and its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from golddiff import __version__, samplers
from golddiff.denoiser import Denoiser
from golddiff.noise import SAME_LEVEL, Labels, Sigma
from golddiff.samplers import (
    Denoises,
    Space,
    check_denoises,
    check_settings,
    checked_levels,
    initial_noise,
    noise_levels,
    noised,
    normal,
)
from golddiff.store.artifacts import digest_of
from golddiff.store.images import ImageStore
from golddiff.store.novelty import Novelty, novelty
from golddiff.system.arguments import as_dense_tensor, check_dense, check_positive, path_of
from golddiff.system.errors import ArgumentError
from golddiff.system.files import atomic_write, check_pictures, check_writable, is_folder
from golddiff.system.memory import require_memory
from golddiff.system.numbers import check_count
from golddiff.system.pictures import draw_grid, own_texts, png, save, to_pixels
from golddiff.system.progress import progress_bar
from golddiff.system.units import shape_text

if TYPE_CHECKING:
    from PIL import Image

    from golddiff.attribution import Attribution
    from golddiff.recording import Subsets

OnStep = Callable[[int], None]
Start = tuple[torch.Tensor, float]

SHORT = ("method", "sampler", "steps", "seed", "software")  # the parts of ``about`` in a repr
MAX_REPR = 1000  # characters of a denoiser in ``about``; a torch module has pages
STATES = 3  # tensors of all images in memory: noise, images to start from, results


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """The result of :func:`sample`; iterates over its images.

    Attributes:
        images: (n, *shape) float32; pixels are in [-1, 1] after DDIM, and may exceed it after Heun.
        x_init: (n, *shape) float32, the unit normal starting noise.
        sigmas: noise level of each step, descending.
        trajectory: (steps, n, *shape) predicted x0 at each step, or None.
        attribution: the sources of each of the n images at the last step, or None.
        subsets: how many images each denoiser call weighed, or None.
        errors: (calls, n) estimated RMSE of each denoiser call to the full scan, if the method
            estimates it (``AdaptiveSchedule``); else None.
        share: smallest share of the training images available at any step; below 1 if shards of
            the store were missing.
        about: method with settings, training images, sampler, steps, seed, labels, start and
            version as text, which PNG files also carry. Arrays are given by a short checksum.
        store: the training set, or another object that has the shape of the images.
    """

    images: torch.Tensor
    x_init: torch.Tensor
    sigmas: list[float]
    trajectory: torch.Tensor | None
    attribution: list[Attribution] | None = None
    subsets: Subsets | None = None
    share: float = 1.0
    about: dict[str, str] = field(default_factory=dict)
    errors: torch.Tensor | None = None
    store: Space | None = None

    @cached_property
    def novelty(self) -> Novelty:
        """The novelty of each image and its nearest training image; computed on first access.

        All images of the store count, also those of other classes or that log weights exclude.

        Raises:
            ArgumentError: as in :func:`golddiff.novelty`; the denoiser has no training set.
        """
        if not hasattr(self.store, "nearest"):
            raise ArgumentError("novelty: the denoiser has no training set to compare with")
        return novelty(self.images, cast(ImageStore, self.store))

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.images)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.images.shape[1:]))
        about = (self.about[name] for name in SHORT if name in self.about)
        return f"<Samples: {len(self)} of {shape}, {', '.join(about)}>"

    def _repr_png_(self) -> bytes | None:
        return png(self.images) if self.images.ndim == 4 else None

    def to_pil(self) -> list[Image.Image]:
        """Each image as a ``PIL.Image``, grey or RGB.

        Raises:
            ArgumentError: the samples are points, not images.
        """
        from PIL import Image

        return [Image.fromarray(pixels) for pixels in to_pixels(self._pictures())]

    def grid(self, columns: int | None = None) -> Image.Image:
        """All images in one grid picture, at least 512 pixels wide.

        Args:
            columns: images per row; None: as close to a square as possible.

        Raises:
            ArgumentError: the samples are points, not images; ``columns`` is not 1 or more.
        """
        return draw_grid(
            self._pictures(), None if columns is None else check_count("columns", columns)
        )

    def save(self, path: str | Path, name: str = "path") -> None:
        """Write the images as one grid picture, as arrays, or as one picture per image.

        Args:
            path: ``x.png`` (or .jpg, .webp) for the grid; ``x.npz`` for the arrays images, x_init,
                sigmas and trajectory; a folder for grid.png, 0000.png, 0001.png and so on. Leftover
                pictures of an earlier, longer run are deleted from the folder.
            name: name of the ``path`` argument in error messages.

        Raises:
            ArgumentError: points as a picture; an unknown suffix; ``path`` cannot be written.
        """
        target = path_of(name, path)
        check_pictures(name, target)
        if target.suffix.lower() == ".npz":
            tensors = {"images": self.images, "x_init": self.x_init, "trajectory": self.trajectory}
            arrays = {key: values.numpy() for key, values in tensors.items() if values is not None}
            # Given a path, NumPy would add .npz to one that ends in .NPZ.
            with atomic_write(name, target) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, sigmas=np.array(self.sigmas), **arrays)  # type: ignore[arg-type]
        elif not is_folder(target):
            check_writable(name, target)
            save(name, self.grid(), target, self.about)
        else:
            labels = self.about.get("labels", "").split()
            for i, image in enumerate(self.to_pil()):
                own = {"labels": labels[i]} if len(labels) == len(self) else {}
                texts = {**self.about, **own, "image": str(i)}
                save(name, image, target / f"{i:04d}.png", texts)
            # The last, so that it is of the same run as the others.
            save(name, self.grid(), target / "grid.png", self.about)
            for path in target.glob("[0-9]*.png"):
                number = int(path.stem) if path.stem.isdecimal() else -1
                if number >= len(self) and own_texts(path).get("image") == str(number):
                    path.unlink()

    def _pictures(self) -> torch.Tensor:
        if self.images.ndim != 4:
            raise ArgumentError(
                f"images: got points of {self.images.shape[1]} values, expected images (C, H, W)"
            )
        return self.images


def sample(
    denoiser: Denoises,
    n: int,
    steps: int = 10,
    sampler: str = "ddim",
    seed: int = 0,
    labels: Labels = None,
    *,
    batch_size: int = 64,
    trajectory: bool = True,
    on_step: OnStep | None = None,
    attribution: bool = False,
    sigmas: Iterable[float] | None = None,
    x_init: torch.Tensor | None = None,
    start: Start | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> Samples:
    """Generate images from noise.

    Args:
        denoiser: any ``D(x, sigma, labels)`` with a ``store``: an ImageStore, or any object
            with the ``shape`` of an image and ``is_pixels``. If the latter is true, DDIM clips
            predictions to [-1, 1].
        n: number of images.
        steps: number of denoising steps, 1 to 1000. DDIM's timesteps are 1000 // steps apart from 0
            on, as diffusers'. Above 200, take a divisor of 1000: others skip the highest levels
            (600 steps start at sigma 6.1), and so do 1 to 5 steps.
        sampler: "ddim", the paper's, or "heun", EDM's (2 * steps - 1 denoiser calls).
        seed: seed of the starting noise; the images do not depend on the batch size.
        labels: class index for all images, or one per image.
        batch_size: number of images per batch; always n if the denoiser has a separate condition
            (log weights, measurement, class to guide to) for each of the n images.
        trajectory: keep the predicted x0 of every step.
        on_step: called after each step of each batch, with the number of images in the batch.
        attribution: also compute the sources of the images, and how many training images each
            step weighed; takes a few times longer.
        sigmas: descending noise levels, instead of ``steps``.
        x_init: (n, *shape) unit normal starting noise, instead of ``seed``.
        start: a pair of images, (*shape) or (n, *shape), and a noise level: start from these
            images with noise of that level instead of from pure noise.
        generator: generator of the starting noise, instead of ``seed``.
        progress: show a progress bar on stderr.

    Raises:
        ArgumentError: an argument is out of range; the sampler is unknown; the denoiser has no
            store, conditions for another number of images, or outputs of another shape;
            ``attribution`` with a method that weighs no training images.
    """
    n, steps, seed, batch_size = check_settings(n, steps, sampler, seed, batch_size)
    check_denoises(denoiser)
    if attribution and not isinstance(denoiser, Denoiser):
        raise ArgumentError(f"attribution: {type(denoiser).__name__} weighs no training images")
    classes = None if labels is None else as_dense_tensor("labels", labels, "integers")
    if classes is not None and classes.ndim == 1 and len(classes) not in (1, n):
        raise ArgumentError(f"labels: got {len(classes)} of them for {n} images")
    conditions = getattr(denoiser, "batch", 1)
    if conditions not in (1, n):
        raise ArgumentError(
            f"n: got {n}, expected {conditions}, the denoiser's number of conditions"
        )
    batch_size = max(batch_size, conditions)
    levels = _levels(sigmas, steps, sampler, start)
    shape = (n, *denoiser.store.shape)
    check_room(n, shape[1:], len(levels) if trajectory else 0)
    noise = _noise(shape, seed, x_init, generator)
    first = (
        noise
        if start is None
        else noised(_of_shape("start", start[0], (shape[1:], shape)), levels[0], noise, sampler)
    )
    noise_given = x_init is not None or generator is not None
    about = {
        **about_denoiser(denoiser),
        "sampler": sampler,
        "steps": f"{len(levels)} steps",
        "seed": f"noise given {_digest(noise)}" if noise_given else f"seed {seed}",
        "software": f"golddiff {__version__}",
    }
    if classes is not None:
        about["labels"] = " ".join(map(str, classes.flatten().tolist()))
    if start is not None:
        images = _digest(start[0].detach().to("cpu", torch.float32))
        about["start"] = f"images {images} with noise {levels[0]:g}"
    if levels != _levels(None, steps, sampler, start):
        about["sigmas"] = " ".join(f"{level:.9g}" for level in levels)
    estimating = not attribution and getattr(denoiser, "estimates", False)
    callers: list[Any] = []  # one per batch; they record errors or attribution
    kept = len(levels) if trajectory else 1
    outputs = torch.empty(kept, *shape, dtype=torch.float32, device="cpu")  # predicted x0
    share = 1.0
    with progress_bar(progress) as bar:
        task = bar.add_task(f"sampling with {about['method']}", total=n * len(levels))
        for rows in (slice(i, i + batch_size) for i in range(0, n, batch_size)):
            caller: Denoises = _Caller(denoiser, estimating)
            if attribution:
                from golddiff.recording import Recorder, Subsets  # importing its kernels is slow

                caller = Recorder(denoiser)
            callers.append(caller)
            own = classes[rows] if classes is not None and classes.numel() == n > 1 else classes
            for i, state in enumerate(samplers.steps(caller, first[rows], levels, sampler, own)):
                outputs[i % kept, rows] = state.x0
                share = min(share, getattr(denoiser.store, "share", 1.0))
                if on_step is not None:
                    on_step(len(state.x0))
                bar.advance(task, len(state.x0))
    return Samples(
        outputs[-1].clone(),
        noise,
        levels,
        outputs if trajectory else None,
        [a for caller in callers for a in caller.attributions()] if attribution else None,
        Subsets.of(callers) if attribution else None,
        share,
        about,
        torch.cat([torch.stack(c.errors) for c in callers], dim=1) if estimating else None,
        denoiser.store,
    )


def check_room(n: int, shape: tuple[int, ...], kept: int) -> None:
    """Raise if a run of n images that keeps ``kept`` predictions of each exceeds free memory."""
    needed = 4 * n * math.prod(shape) * (STATES + kept)
    require_memory(needed, f"n = {n:,} images", "ask for fewer at a time")


class _Caller:
    """Calls a denoiser, records each call's estimated error if any, and drops gradients."""

    def __init__(self, denoiser: Any, estimating: bool) -> None:
        self.store, self._denoiser, self._estimating = denoiser.store, denoiser, estimating
        self.errors: list[torch.Tensor] = []

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        if self._estimating:
            x0, errors = self._denoiser.estimated(x, sigma, labels)
            self.errors.append(errors)
        else:
            x0 = self._denoiser(x, sigma, labels)
        # Anything but a tensor is refused by ``steps``.
        return x0.detach() if isinstance(x0, torch.Tensor) else cast(torch.Tensor, x0)


def _levels(
    sigmas: Iterable[float] | None, steps: int, sampler: str, start: Start | None
) -> list[float]:
    if start is not None and not (isinstance(start, tuple | list) and len(start) == 2):
        raise ArgumentError(
            f"start: got {type(start).__name__}, expected a pair of images and their noise level"
        )
    first = None if start is None else check_positive("start", start[1])
    levels = noise_levels(steps, sampler, first) if sigmas is None else checked_levels(sigmas)
    if first is not None and not math.isclose(levels[0], first, rel_tol=SAME_LEVEL):
        raise ArgumentError(f"sigmas: begin at {levels[0]:g}, but start has noise {first:g}")
    return levels


def _noise(
    shape: tuple[int, ...], seed: int, x_init: torch.Tensor | None, generator: Any
) -> torch.Tensor:
    if x_init is not None and generator is not None:
        raise ArgumentError("generator: got one together with x_init, expected only one of the two")
    if x_init is not None:
        return _of_shape("x_init", x_init, (shape,))
    if generator is not None:
        if not isinstance(generator, torch.Generator):
            kind = type(generator)
            raise ArgumentError(
                f"generator: got {kind.__module__}.{kind.__name__}, expected a torch.Generator"
            )
        return normal(shape, generator)
    return initial_noise(shape[0], shape[1:], seed)


def _of_shape(name: str, values: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> torch.Tensor:
    got = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
    if got not in shapes:
        allowed = " or ".join(map(str, shapes))
        raise ArgumentError(f"{name}: got {got}, expected a tensor of shape {allowed}")
    check_dense(name, values)
    if not values.is_floating_point():
        raise ArgumentError(f"{name}: got {values.dtype}, expected floats (pixels in [-1, 1])")
    if not torch.isfinite(values).all():
        raise ArgumentError(f"{name}: got values that are not finite")
    return values.detach().to("cpu", torch.float32, copy=True)


def about_denoiser(denoiser: Denoises) -> dict[str, str]:
    """A denoiser's method, such as 'GoldDiff(PCA)', settings and training images, without paths."""
    base, kind = getattr(denoiser, "base", None), type(denoiser)
    store: Any = denoiser.store
    about = {"method": kind.__name__ if base is None else f"{kind.__name__}({type(base).__name__})"}
    if kind.__repr__ is not object.__repr__:  # which has an address instead of settings
        with suppress(Exception):  # the caller's class may not have the attributes of a repr
            text = " ".join(repr(denoiser).replace(repr(store), "store").split())
            about["denoiser"] = text if len(text) <= MAX_REPR else f"{text[:MAX_REPR]}..."
    if priors := getattr(denoiser, "priors", ()):
        about["log weights"] = _digest(*(prior.values for prior in priors))
    if hasattr(store, "manifest"):
        images = "" if len(store.shape) == 1 else "images, "
        about["data"] = f"{store.manifest.source}: {store.n:,} {images}{shape_text(store.shape)}"
        about["images_checksum"] = store.manifest.images_checksum
    return about


def _digest(*arrays: Any) -> str:
    """A short checksum of arrays, which tells runs apart."""
    return digest_of({str(i): np.asarray(array) for i, array in enumerate(arrays)})[:12]
