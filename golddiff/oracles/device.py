"""Devices, found missing before the work starts."""

from __future__ import annotations

import torch

from golddiff.errors import ArgumentError


def checked_device(device: str | torch.device) -> str:
    """The device's name, once a tensor could be put there.

    Raises:
        ArgumentError: no such device.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ArgumentError(f"device: got {device!r}, which is not there ({reason})") from error
    return str(device)
