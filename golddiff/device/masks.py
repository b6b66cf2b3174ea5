"""The PCA locality masks of :mod:`golddiff.estimators.masks`, made on a device in tile order."""

from __future__ import annotations

from collections import OrderedDict

import torch

from golddiff.device.store import DeviceStore
from golddiff.estimators.masks import FLOAT64_BYTES, least
from golddiff.kernels.mask_blocks import MaskBlocks


def device_mask(store: DeviceStore, sigma: float, threshold: float) -> torch.Tensor:
    """The mask (D, D) bool, indexed [input, output], both in tile order."""
    factor = store.store.factor()
    d = store.d
    dtype = torch.float64 if 8 * d * d <= FLOAT64_BYTES else torch.float32
    vectors = torch.from_numpy(factor.eigenvectors).to(store.device, dtype)[store.order]
    gains = torch.from_numpy(factor.shrinkage(sigma)).to(store.device, dtype)
    m = (vectors * gains) @ vectors.T
    diagonal = torch.diagonal(m).clone()
    diagonal[diagonal.abs() < 1e-6] = 1.0
    m /= diagonal[:, None]
    m.abs_()
    return m >= least(threshold) * m.amax()


class MaskCache:
    """Masks as blocks, of as many noise levels as the memory plan allows; the oldest go first."""

    def __init__(self, store: DeviceStore, threshold: float) -> None:
        self._store = store
        self._threshold = threshold
        self._kept: OrderedDict[float, MaskBlocks] = OrderedDict()

    def at(self, sigma: float) -> MaskBlocks:
        """The blocks of one noise level."""
        if sigma not in self._kept:
            blocks = MaskBlocks.best(device_mask(self._store, sigma, self._threshold))
            room = self._store.plan.mask_bytes - blocks.bytes()
            while self._kept and sum(b.bytes() for b in self._kept.values()) > room:
                self._kept.popitem(last=False)
            self._kept[sigma] = blocks
        self._kept.move_to_end(sigma)
        return self._kept[sigma]
