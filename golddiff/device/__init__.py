"""Denoising on a GPU: where the training set lies, what runs there, and in which order."""

from __future__ import annotations

import torch

from golddiff.denoiser import Denoiser
from golddiff.device.run import OnDevice
from golddiff.device.steps import step_on
from golddiff.device.store import DeviceStore, device_store
from golddiff.store.images import ImageStore

__all__ = ["DeviceStore", "OnDevice", "device_store", "on_device"]


def on_device(denoiser: Denoiser, device: torch.device) -> OnDevice | None:
    """The denoiser on a device, made once; None where it can only run on the CPU.

    Raises:
        ArgumentError: the device's memory is too small for the store.
    """
    training_set: object = denoiser.store
    if not isinstance(training_set, ImageStore):
        return None  # the images lie on other machines
    # Kept on the denoiser, and the store's pixels on the store: freed with them.
    kept: dict[torch.device, OnDevice] = denoiser.__dict__.setdefault("_on_device", {})
    if device not in kept:
        store = device_store(denoiser.store, device)
        if step_on(denoiser, store) is None:
            return None
        kept[device] = OnDevice(denoiser, store)
    return kept[device]
