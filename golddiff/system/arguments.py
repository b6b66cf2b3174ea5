"""Shared checks of arguments: tensors, noise levels, classes and paths."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from golddiff.system.errors import ArgumentError, one_line

Levels = list[tuple[float, int]]  # (sigma, size)
MOST, LEAST = sys.float_info.max, math.ulp(0.0)  # the largest float, the smallest above 0
SHOWN = 60  # characters of a rejected value that an error message quotes


def check_dense(name: str, x: torch.Tensor) -> None:
    """Raise unless a tensor is dense (strided, not nested) and has data."""
    if x.is_nested or x.layout is not torch.strided or x.is_meta:
        kind = "a nested tensor" if x.is_nested else f"{x.layout} on {x.device.type}"
        raise ArgumentError(f"{name}: got {kind}, expected a dense tensor that holds numbers")


def as_dense_tensor(name: str, value: Any, expected: str) -> torch.Tensor:
    """Real numbers as a dense tensor on the CPU; Python's become float64 or int64."""
    try:
        is_tensor = isinstance(value, torch.Tensor)
        tensor = value if is_tensor else torch.as_tensor(np.asarray(value, order="C"), device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ArgumentError(f"{name}: got {value!r:.{SHOWN}}, expected {expected}") from None
    check_dense(name, tensor)
    if tensor.dtype == torch.bool or tensor.is_complex():
        shown = tensor.dtype if is_tensor or tensor.ndim else repr(value)
        raise ArgumentError(f"{name}: got {shown}, expected {expected}")
    return tensor.detach().cpu()


def expand_to_batch(name: str, values: torch.Tensor, b: int, one: str) -> torch.Tensor:
    """Expand values () or (1,), which the batch shares, to (b,); values (b,) stay unchanged."""
    if values.ndim > 1 or (values.ndim == 1 and len(values) not in (1, b)):
        raise ArgumentError(f"{name}: got shape {tuple(values.shape)}, expected {one} or ({b},)")
    return values.expand(b)


def classes_of(labels: int | Sequence[int] | torch.Tensor, b: int) -> torch.Tensor:
    """Class indices (b,), int64, from one class for all b images or one per image."""
    values = as_dense_tensor("labels", labels, "integers")
    if values.is_floating_point():
        raise ArgumentError(f"labels: got {values.dtype}, expected integers")
    return expand_to_batch("labels", values, b, "one class").long()


def levels_of(sigma: float | Sequence[float] | torch.Tensor, b: int) -> torch.Tensor:
    """Noise levels (b,), float64, from one level for all b images or one per image."""
    values = as_dense_tensor("sigma", sigma, "a finite number above 0")
    values = expand_to_batch("sigma", values, b, "one number").double()
    invalid = values[~(values.isfinite() & (values > 0))]
    if invalid.numel():
        raise ArgumentError(f"sigma: got {float(invalid[0])}, expected a finite number above 0")
    return values


def check_number(name: str, value: object, expected: str, least: float, most: float) -> float:
    """The value as a float; raises unless it is a number from ``least`` to ``most``."""
    number = as_number(value)
    if not least <= number <= most:
        raise ArgumentError(f"{name}: got {value!r}, expected {expected}")
    return number


def check_not_negative(name: str, value: object) -> float:
    """The value as a float; raises unless it is a finite number of 0 or more."""
    return check_number(name, value, "a finite number of 0 or more", 0, MOST)


def check_positive(name: str, value: object) -> float:
    """The value as a float; raises unless it is a finite number above 0."""
    return check_number(name, value, "a finite number above 0", LEAST, MOST)


def check_novelty(value: object) -> float:
    """The novelty as a float; raises unless it is a number from 0 to 1."""
    return check_number("novelty", value, "a number from 0 to 1", 0, 1)


def as_number(value: object) -> float:
    """A Python or NumPy number, or a 0-dim tensor or array of one, as a float.

    NaN for anything else, booleans included.
    """
    if isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 0:
        with suppress(RuntimeError, ValueError):  # a tensor without data has no number
            value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a Python integer beyond 1e308
        return math.inf if value > 0 else -math.inf


def sizes_of(name: str, value: object, check: Callable[[str, object], int]) -> Levels:
    """Pairs (sigma, size) from such pairs, or from one size, which becomes the pair (1, size)."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [(1.0, check(name, value))]
    pairs = []
    for pair in value:
        if not (isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2):
            raise ArgumentError(f"{name}: got {pair!r}, expected pairs (sigma, size)")
        sigma, size = pair
        if not 0 < as_number(sigma) < math.inf:
            raise ArgumentError(f"{name}: got sigma {sigma!r}, expected a number above 0")
        pairs.append((float(sigma), check(name, size)))
    if not pairs or len({sigma for sigma, _ in pairs}) < len(pairs):
        raise ArgumentError(
            f"{name}: got {value!r}, expected at least one pair, all sigmas different"
        )
    return pairs


def check_batch(name: str, x: object, shape: tuple[int, ...] | None, owner: str) -> None:
    """Raise unless ``x`` is a float tensor (B, *shape); with ``shape`` None any shape is valid."""
    if not isinstance(x, torch.Tensor):
        raise ArgumentError(f"{name}: got {type(x).__name__}, expected a torch.Tensor")
    check_dense(name, x)
    if shape is not None and tuple(x.shape[1:]) != shape:
        raise ArgumentError(
            f"{name}: got shape {tuple(x.shape)}, expected (B, {', '.join(map(str, shape))}) "
            f"to match the {owner}"
        )
    if not x.is_floating_point():
        raise ArgumentError(f"{name}: got {x.dtype}, expected a floating-point tensor")


def check_device(device: str | int | torch.device) -> torch.device:
    """The device with its index, "cuda" as "cuda:0"; raises if no tensor can be put there."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ArgumentError(
            f"device: got {device!r}, which is not available ({one_line(error, 120)})"
        ) from error


def path_of(name: str, value: str | os.PathLike[str]) -> Path:
    """The value as a Path, ~ expanded; raises unless it is a str or PathLike without nulls."""
    if not isinstance(value, str | os.PathLike) or "\0" in os.fspath(value):
        raise ArgumentError(f"{name}: got {value!r:.{SHOWN}}, expected a file or folder")
    return Path(os.path.expanduser(value))
