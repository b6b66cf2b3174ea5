"""A measurement y = A x0 + noise: A as a sparse matrix, what it says of images, and going back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array, hstack
from scipy.sparse.linalg import LinearOperator as Products
from scipy.sparse.linalg import aslinearoperator, lsqr

from golddiff.noise import precision
from golddiff.samplers import initial_noise
from golddiff.store.likelihood import applied, as_call, log_likelihood
from golddiff.system.errors import ArgumentError
from golddiff.system.memory import require_memory
from golddiff.system.numbers import F32, F64, I64
from golddiff.system.parallel import products_alone

AT_ONCE = 256  # basis images that an operator is applied to
ENTRY_BYTES = 60  # of a sparse matrix, its transpose and shares, and while any of them is made
MOST_ITERATIONS = 48
ALIKE = 0.02  # standard deviation anywhere: three steps of 256 from black to white
NEAR = 0.01  # to y, where a smooth move ends and the last is put back value by value
EXACT = 1e-3  # a quarter of an 8-bit step: nearer than this to y is no better
NEARBY, LEAST_NOISE = 1000, 0.2  # of a Gaussian of images, chosen on 24 other digits and faces
REACH, NUGGET = 16, 0.4  # of pixels that move together (docs/results/restoring.md)
LINEAR = 1e-3  # of an operator's values on noise, how far a sum's may be from the sum of them


@dataclass(frozen=True, eq=False)
class LinearOperator:
    """An operator, and its sparse matrix; called, it is the operator.

    Attributes:
        forward: the operator, on images (b, *shape).
        shape: of an image.
        matrix: (m, D) float64, of the measured values that images move.
        transposed: the same by its columns, (D, m): scipy's own transpose takes four times as long.
        shares: its absolute values with rows that sum to 1, transposed, (D, m) float32.
        constant: what it makes of zeros, all measured values.
        seen: (m,) which of them images move.
    """

    forward: Callable[[torch.Tensor], torch.Tensor]
    shape: tuple[int, ...]
    matrix: Any
    transposed: Any
    shares: Any
    constant: torch.Tensor
    seen: I64

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """What it makes of images (b, *shape)."""
        return self.forward(images)


@dataclass(frozen=True, eq=False)
class Measurement:
    """One measurement of one image.

    Attributes:
        operator: A.
        y: (m,) float64 measured values that images move, less what A makes of zeros.
        noise: standard deviation of their noise.
        soft: standard deviation that images are weighed by.
    """

    operator: LinearOperator
    y: F64
    noise: float
    soft: float

    def penalties(self, images: F32) -> F32:
        """How far images (k, D) are from its values: (y_c - (A x_i)_c)^2 / (2 soft^2), (k, m)."""
        a = self.operator
        made = a(torch.from_numpy(images).reshape(-1, *a.shape)).reshape(len(images), -1)
        off = (made.float() - a.constant.float()).numpy()[:, a.seen] - self.y.astype(np.float32)
        found: F32 = np.square(off) * np.float32(precision(self.soft))
        return found

    def put_back(self, x0: NDArray[np.floating[Any]], most: int = MOST_ITERATIONS) -> F64:
        """Estimates (b, D), moved so little that A x0 is within ``noise`` of y (root mean square).

        x0 + a A^+ (y - A x0), with the least a in [0, 1] for that. A^+ is taken by LSQR, in steps
        from 0, which stop where the noise begins (or at ``EXACT``), or after so many: a blur is not
        undone further.
        """
        return self._moved(x0, EXACT, most, _itself(math.prod(self.operator.shape)))

    def fitted(self, x0: NDArray[np.floating[Any]]) -> F64:
        """As :meth:`put_back`, but what was not measured moves with its measured neighbours.

        x0 + a K A^T (A K A^T)^+ (y - A x0), so a hole's colours go on from those around it. K is
        the covariance of pixels that are alike nearby: along rows, and along columns, that of
        pixels i and j is exp(-|i - j| / r) + 0.4 (i = j), with r a sixteenth of the side, or 2.
        """
        near = self._moved(x0, NEAR, MOST_ITERATIONS, _smooth_root(self.operator.shape))
        return self.put_back(near)

    def _moved(
        self, x0: NDArray[np.floating[Any]], enough: float, most: int, root: Products
    ) -> F64:
        """Estimates (b, D) moved by a K A^T (A K A^T)^+ (y - A x0), with K = root root^T."""
        matrix, transposed = self.operator.matrix, self.operator.transposed
        through = Products(matrix.shape, matrix.dot, transposed.dot, dtype=np.float64) @ root

        def one_moved(x0: F64) -> F64:
            residual = self.y - matrix @ x0
            near = max(self.noise, enough) * math.sqrt(len(self.y))
            far = float(np.linalg.norm(residual))
            if far <= near:
                return x0
            moved = root @ lsqr(through, residual, atol=0, btol=near / far, iter_lim=most)[0]
            step: F64 = matrix @ moved
            left = float(np.linalg.norm(residual - step))
            size = float(np.linalg.norm(step))
            # LSQR's residual is at right angles to the step:
            # ||r - a step||^2 = left^2 + (1 - a)^2 size^2
            near = self.noise * math.sqrt(len(self.y))
            short = math.sqrt(max(near**2 - left**2, 0)) / size if size else 1.0
            back: F64 = x0 + (1 - min(short, 1.0)) * moved
            return back

        with products_alone():  # a norm of 12,288 values took 7 ms on two threads, one of them busy
            return np.stack([one_moved(one.astype(np.float64)) for one in x0])


@cache
def _itself(d: int) -> Products:
    """The root of K = I: each value moves alone."""
    return aslinearoperator(eye_array(d))


@cache
def _smooth_root(shape: tuple[int, ...]) -> Products:
    """The Cholesky root of the K of :meth:`Measurement.fitted`, of images (C, H, W)."""
    _, height, width = shape
    down, across = _line_root(height), _line_root(width)

    def times(down: F64, across: F64, u: F64) -> F64:
        return (down @ u.reshape(shape) @ across.T).ravel()

    d = math.prod(shape)
    return Products((d, d), partial(times, down, across), partial(times, down.T, across.T),
                    dtype=np.float64)  # fmt: skip


def _line_root(side: int) -> F64:
    places = np.arange(side)
    alike = np.exp(-np.abs(places[:, None] - places) / max(side / REACH, 2))
    root: F64 = np.linalg.cholesky(alike + NUGGET * np.eye(side))
    return root


def linear(operator: Any, shape: tuple[int, ...], measured: tuple[int, ...]) -> LinearOperator:
    """An operator with its matrix, which takes applying it to an image of each value; made once.

    Args:
        operator: linear, but for a constant; a callable on (b, *shape), or a deepinv physics.
        shape: of an image.
        measured: of what it makes of one.

    Raises:
        ArgumentError: an operator that fails, is not linear or makes another shape.
    """
    if isinstance(operator, LinearOperator):
        return operator
    forward, d = as_call(operator), math.prod(shape)

    def made(images: torch.Tensor) -> torch.Tensor:
        found = applied(forward, images.reshape(-1, *shape), measured)
        return found.detach().to("cpu", torch.float64).reshape(len(images), -1)

    with torch.no_grad():
        constant = made(torch.zeros(1, d, device="cpu"))
        one, other = initial_noise(2, (1, d), 0)
        both = made(one) + made(other) - constant
        if float((made(one + other) - both).abs().max()) > LINEAR * float(both.abs().max()):
            raise ArgumentError("operator: is not linear, or random; expected a linear one")
        columns: list[Any] = []
        entries = 0
        for start in range(0, d, AT_ONCE):
            basis = torch.eye(min(AT_ONCE, d - start), d, device="cpu")
            columns.append(csr_array((made(basis.roll(start, dims=1)) - constant).numpy().T))
            entries += columns[-1].nnz
            expected = entries * d / min(start + AT_ONCE, d)
            require_memory(ENTRY_BYTES * expected, "the operator's matrix", "use a more local one")
    matrix = csr_array(hstack(columns))
    total = abs(matrix).sum(axis=1)
    seen = np.flatnonzero(total > 0)  # deepinv's holes are measured as 0
    if not len(seen):
        raise ArgumentError("operator: makes the same of all images, so nothing was measured")
    matrix = matrix[seen]
    shares = csr_array(abs(matrix).multiply(1 / total[seen, None]).T).astype(np.float32)
    return LinearOperator(forward, shape, matrix, csr_array(matrix.T), shares, constant, seen)


def measurements(
    operator: Any, y: torch.Tensor, shape: tuple[int, ...], noise: float, soft: float
) -> list[Measurement]:
    """Of measurements (B, *measured) of images of a shape.

    Args:
        operator: as for :func:`linear`.
        y: what it made of the images.
        shape: of an image.
        noise: standard deviation of y's noise.
        soft: that images are weighed by, above 0.

    Raises:
        ArgumentError: as :func:`linear`.
    """
    made = linear(operator, shape, tuple(y.shape[1:]))
    values = (y.detach().to("cpu", torch.float64).reshape(len(y), -1) - made.constant).numpy()
    return [Measurement(made, one[made.seen], noise, soft) for one in values]


def expected(store: Any, operator: Any, y: torch.Tensor, noise: float = 0.0) -> torch.Tensor:
    """The pictures of least expected error: not one that may have been, but the mean of them.

    The images that fit y best make a Gaussian N(m, C), which is conditioned on y::

        x0 = m + C A^T (A C A^T + s^2 I)^-1 (y - A m)

    Where restorations differ it is blurred: a mean has half of a draw's squared error.

    Args:
        store: the training set.
        operator: A, linear: a callable on (b, *shape), or a deepinv physics.
        y: (B, *measured) measurements.
        noise: standard deviation of y's noise; s is at least 0.2, as no image fits exactly.

    Returns:
        (B, *shape) float32.

    Raises:
        ArgumentError: as :func:`golddiff.log_likelihood`.

    Source: the analysis step of the ensemble Kalman filter (Evensen 2003), of the images nearby.
    """
    s, out = max(noise, LEAST_NOISE), []
    fit = log_likelihood(store, operator, y, s).topk(min(NEARBY, store.n)).indices
    for one, rows in zip(y.detach().cpu().double(), fit, strict=True):
        images = store.images(rows.sort().values)
        values, made = (v.flatten(1).double() for v in (images, as_call(operator)(images)))
        mean, centre = values.mean(dim=0), made.mean(dim=0)
        off, ridge = made - centre, len(rows) * s**2 * torch.eye(len(rows), device="cpu").double()
        weights = torch.linalg.solve(off @ off.T + ridge, off @ (one.flatten() - centre))
        out.append((mean + weights @ (values - mean)).reshape(store.shape).float())
    found = torch.stack(out)
    return found.clamp(-1, 1) if store.is_pixels else found


def pictures_of(
    images: torch.Tensor, y: torch.Tensor, operator: LinearOperator
) -> dict[str, torch.Tensor]:
    """Restorations (n, *shape) of one measurement beside what is known, their mean and spread.

    Returns:
        Images (C, H, W) in [-1, 1] by what they are. Their mean is mostly nearer to the truth.
        Where they differ is grey, white where their standard deviation is half of the range from
        black to white. Of one restoration, or of some that are alike, there is neither.
    """
    known = measurements(operator, y[None], operator.shape, 0.0, 1.0)[0]
    first = known.put_back(np.zeros((1, math.prod(operator.shape)), np.float32))
    spread = images.std(dim=0, correction=0)
    shown = {
        "known": torch.from_numpy(first).float().reshape(operator.shape),
        **{f"restoration {i + 1}": image for i, image in enumerate(images)},
    }
    if spread.max() >= ALIKE:
        shown["their mean"] = images.mean(dim=0)
        grey = (4 * spread.mean(dim=0) - 1).clamp(-1, 1)
        shown["where they differ"] = grey.expand(operator.shape)
    return shown
