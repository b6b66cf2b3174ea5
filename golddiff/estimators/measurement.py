"""Measurements y = A x0 + noise: A as a sparse matrix, likelihoods and projection onto y."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from scipy.sparse.linalg import LinearOperator as Products
from scipy.sparse.linalg import lsqr

from golddiff.estimators.seamless import smoothed
from golddiff.kernels.lowest import lowest
from golddiff.noise import precision
from golddiff.samplers import initial_noise
from golddiff.store.images import opened
from golddiff.store.likelihood import applied, as_call, log_likelihood
from golddiff.system.arguments import check_not_negative
from golddiff.system.errors import ArgumentError
from golddiff.system.memory import require_memory
from golddiff.system.numbers import F32, F64, I64
from golddiff.system.parallel import single_threaded_blas

BASIS_BATCH = 256  # basis images to which an operator is applied at a time
ENTRY_BYTES = 60  # peak memory per entry of a sparse matrix, its transpose and its shares
MAX_ITERATIONS = 48
MISFIT = 0.03  # least misfit beyond the noise to warn of; a wrong blur exceeds it, rounding not
MIN_SPREAD = 0.02  # smallest standard deviation that is shown, about 3 of 256 grey levels
# Distances to y, for a gain of 1: where the smooth projection ends and the plain one takes over,
# and a quarter of an 8-bit step, below which none is visible.
SMOOTH_TOL, EXACT = 0.01, 1e-3
NEARBY, MIN_NOISE = 1000, 0.2  # of :func:`expected`, chosen on 24 other digits and faces
FLATNESS = 4  # lambda * side, of the covariance of neighbours (docs/results/restoring.md)
LINEARITY_TOL = 1e-3  # relative error of additivity, on noise, up to which an operator is linear
# Entries below this share of a row's output for noise are rounding, as of an FFT.
LEAST_ENTRY, PROBES = 1e-6, 16


@dataclass(frozen=True, eq=False)
class LinearOperator:
    """A linear operator (up to a constant) with its sparse matrix; calling it applies the operator.

    Attributes:
        forward: the operator, on images (b, *shape).
        shape: shape of an image.
        matrix: (m, D) float64, with rows for the measured values that depend on the image.
        transposed: (D, m), stored as its own matrix, because scipy's transpose is 4 times slower.
        shares: (D, m) float32, the transpose of abs(matrix) with rows normalised to sum 1.
        constant: the operator's output for zeros, with all measured values.
        active: (m,) indices of the measured values that depend on the image.
        gain: how strongly a typical measured value depends on the image: the median over rows of
            the sum or the norm of their entries, whichever is larger. A mean of pixels has 1.
    """

    forward: Callable[[torch.Tensor], torch.Tensor]
    shape: tuple[int, ...]
    matrix: Any
    transposed: Any
    shares: Any
    constant: torch.Tensor
    active: I64
    gain: float

    @torch.no_grad()
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """The operator's output for images (b, *shape)."""
        return self.forward(images)


@dataclass(frozen=True, eq=False)
class Measurement:
    """One measurement of one image.

    Attributes:
        operator: A.
        y: (m,) float64 measured values that depend on the image, minus A's constant.
        noise: standard deviation of their noise.
        soft: standard deviation in the likelihood of training images.
    """

    operator: LinearOperator
    y: F64
    noise: float
    soft: float

    def penalties(self, images: F32) -> F32:
        """(y_c - (A x_i)_c)^2 / (2 soft^2) for images (k, D) and measured values c, (k, m)."""
        a, y = self.operator, self.y.astype(np.float32)
        measured = a(torch.from_numpy(images).reshape(-1, *a.shape)).reshape(len(images), -1)
        linear_part = (measured.float() - a.constant.float()).numpy()[:, a.active]
        return np.square(linear_part - y) * np.float32(precision(self.soft))

    def project(self, x0: NDArray[np.floating[Any]], iterations: int = MAX_ITERATIONS) -> F64:
        """Estimates (b, D) moved just enough that the RMSE of A x0 to y is at most ``noise``.

        x0 + a A^+ (y - A x0), with the smallest such a in [0, 1]. LSQR approximates A^+ and stops
        at the noise (or at ``EXACT``), or after ``iterations``, which limits deblurring.
        """
        return self._projected(x0, EXACT, iterations, lambda values: values)

    def project_smoothly(self, x0: NDArray[np.floating[Any]]) -> F64:
        """:meth:`project`, but unmeasured values move with their measured neighbours.

        x0 + a K A^T (A K A^T)^+ (y - A x0), so that a hole continues the colours around it. K is
        the covariance (lambda + L)^-1 of neighbouring pixels, lambda = 4 / side; L as in
        :mod:`golddiff.estimators.seamless`. It has no direction, so noise leaves no stripes.
        """
        shape = self.operator.shape

        def root(values: F64) -> F64:
            return smoothed(values.reshape(1, *shape), FLATNESS / max(shape[1:]), 0.5).ravel()

        return self.project(self._projected(x0, SMOOTH_TOL, MAX_ITERATIONS, root))

    def _projected(
        self, x0: NDArray[np.floating[Any]], tol: float, iterations: int, root: Callable[[F64], F64]
    ) -> F64:
        """Estimates (b, D) moved by a K A^T (A K A^T)^+ (y - A x0); ``root`` is that of K."""
        matrix, transposed = self.operator.matrix, self.operator.transposed
        a_root = Products(
            matrix.shape,
            lambda values: matrix @ root(values.ravel()),
            lambda measured: root(transposed @ measured.ravel()),
            dtype=np.float64,
        )

        def move(x0: F64) -> F64:
            residual = self.y - matrix @ x0
            target = max(self.noise, tol * self.operator.gain) * math.sqrt(len(self.y))
            norm = float(np.linalg.norm(residual))
            if norm <= target:
                return x0
            found = lsqr(a_root, residual, atol=0, btol=target / norm, iter_lim=iterations)
            shift = root(found[0])
            step: F64 = matrix @ shift
            left = float(np.linalg.norm(residual - step))
            size = float(np.linalg.norm(step))
            # LSQR's residual is orthogonal to the step:
            # ||r - a step||^2 = left^2 + (1 - a)^2 size^2
            target = self.noise * math.sqrt(len(self.y))
            untaken = math.sqrt(max(target**2 - left**2, 0)) / size if size else 1.0
            return x0 + (1 - min(untaken, 1.0)) * shift

        with single_threaded_blas():  # a norm took 7 ms on two threads if one was busy
            return np.stack([move(image.astype(np.float64)) for image in x0])


def linear(operator: Any, shape: tuple[int, ...], measured: tuple[int, ...]) -> LinearOperator:
    """An operator with its matrix, found by applying it to every basis image.

    Args:
        operator: linear up to a constant; a callable on (b, *shape), or a deepinv physics.
        shape: shape of an image.
        measured: shape of the operator's output for one image.

    Raises:
        ArgumentError: the operator fails, is not linear, or its output has another shape.
    """
    if isinstance(operator, LinearOperator):
        return operator
    forward, d = as_call(operator), math.prod(shape)

    def measure(images: torch.Tensor) -> torch.Tensor:
        output = applied(forward, images.reshape(-1, *shape), measured)
        return output.detach().to("cpu", torch.float64).reshape(len(images), -1)

    with torch.no_grad():
        constant = measure(torch.zeros(1, d, device="cpu"))
        probes = initial_noise(PROBES, (d,), 0)
        pair, total = probes[:2], measure(probes[:1]) + measure(probes[1:2]) - constant
        outputs = measure(torch.cat([probes, pair.sum(dim=0, keepdim=True)]))
        if float((outputs[-1] - total).abs().max()) > LINEARITY_TOL * float(total.abs().max()):
            raise ArgumentError(
                "operator: is not linear, is random, mixes the images of a batch, or computes in "
                "less than float32; expected a linear one"
            )
        least = LEAST_ENTRY * (outputs[:-1] - constant).square().mean(dim=0).sqrt()
        columns: list[Any] = []
        entries = 0
        for start in range(0, d, BASIS_BATCH):
            basis = torch.eye(min(BASIS_BATCH, d - start), d, device="cpu")
            values = measure(basis.roll(start, dims=1)) - constant
            values[values.abs() < least] = 0
            columns.append(csr_array(values.numpy().T))
            entries += columns[-1].nnz
            estimate = ENTRY_BYTES * (entries * d / min(start + BASIS_BATCH, d))
            require_memory(estimate, "the operator's matrix", "use a more local one")
    matrix = csr_array(hstack(columns))
    row_sums = abs(matrix).sum(axis=1)
    active = np.flatnonzero(row_sums > 0)  # deepinv measures holes as a constant 0
    if not len(active):
        raise ArgumentError("operator: gives all images the same output, so nothing was measured")
    matrix = matrix[active]
    shares = csr_array(abs(matrix).multiply(1 / row_sums[active, None]).T).astype(np.float32)
    norms = np.sqrt(matrix.power(2).sum(axis=1))
    gain = float(np.median(np.maximum(abs(matrix.sum(axis=1)), norms)))
    transposed = csr_array(matrix.T)
    return LinearOperator(forward, shape, matrix, transposed, shares, constant, active, gain)


def measurements(
    operator: Any, y: torch.Tensor, shape: tuple[int, ...], noise: float, soft: float
) -> list[Measurement]:
    """The measurement of each of B images, from measured values y (B, *measured).

    ``operator`` and ``shape`` are as for :func:`linear`, which may raise ArgumentError; ``noise``
    and ``soft``, above 0, as in :class:`Measurement`.
    """
    a = linear(operator, shape, tuple(y.shape[1:]))
    values = (y.detach().to("cpu", torch.float64).reshape(len(y), -1) - a.constant).numpy()
    return [Measurement(a, row[a.active], noise, soft) for row in values]


@torch.no_grad()
def expected(store: Any, operator: Any, y: torch.Tensor, noise: float = 0.0) -> torch.Tensor:
    """An estimate of the posterior mean of each picture, without a run.

    A Gaussian N(m, C) is fitted to the images that fit y best and conditioned on y::

        x0 = m + C A^T (A C A^T + s^2 I)^-1 (y - A m)

    The mean is blurred where restorations differ.

    Args:
        store: the training set, or the path of a store.
        operator: A, linear: a callable on (b, *shape), or a deepinv physics.
        y: (B, *measured) measurements.
        noise: standard deviation of y's noise. s is at least 0.2, since no image fits exactly: so
            y should be in units of the pixels, -1 to 1.

    Returns:
        (B, *shape) float32.

    Raises:
        ArgumentError: as :func:`golddiff.log_likelihood`.

    Source: the analysis step of the ensemble Kalman filter (Evensen 2003), over nearby images.
    """
    store = opened(store)
    s, out = max(check_not_negative("noise", noise), MIN_NOISE), []
    logs = log_likelihood(store, operator, y, s).numpy()
    for own_y, log in zip(y.detach().cpu().double(), logs, strict=True):
        rows = lowest(-log, NEARBY)
        images = store.images(rows)
        values, measured = (
            v.reshape(len(rows), -1).double() for v in (images, as_call(operator)(images))
        )
        mean, centre = values.mean(dim=0), measured.mean(dim=0)
        ridge = len(rows) * s**2 * torch.eye(len(rows), device="cpu").double()
        centred, residual = measured - centre, own_y.flatten() - centre
        weights = torch.linalg.solve(centred @ centred.T + ridge, centred @ residual)
        out.append((mean + weights @ (values - mean)).reshape(store.shape).float())
    pictures = torch.stack(out)
    return pictures.clamp(-1, 1) if store.is_pixels else pictures


def misfit(
    images: torch.Tensor, y: torch.Tensor, operator: LinearOperator, noise: float
) -> str | None:
    """A warning if restorations do not fit y within its noise."""
    rms = float((operator(images) - y).square().mean().sqrt())
    return None if rms <= 2 * noise + MISFIT else (
        f"no picture fits yours: restorations differ by {rms:.2f} from what is known (white to "
        "black is 2); a smaller blur or a larger noise may help"
    )  # fmt: skip


def pictures_of(images: torch.Tensor, known: torch.Tensor) -> dict[str, torch.Tensor]:
    """Pictures of what is known, of restorations (n, *shape), and of their mean and spread.

    Returns:
        Images (C, H, W) in [-1, 1] by title. The mean is usually closest to the truth. The map of
        differences is black where there are none, and white where the standard deviation is a
        quarter of the range from black to white or more. Both are omitted for a single restoration
        or nearly equal ones.
    """
    spread = images.std(dim=0, correction=0)
    shown = {"known": known, **{f"restoration {i + 1}": image for i, image in enumerate(images)}}
    if spread.max() >= MIN_SPREAD:
        shown["their mean"] = images.mean(dim=0)
        grey = (4 * spread.mean(dim=0) - 1).clamp(-1, 1)
        shown["where they differ"] = grey.expand(known.shape)
    return shown
