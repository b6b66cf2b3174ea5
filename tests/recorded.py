"""A denoiser that records its calls, so that another can be compared with it at the same x.

Whole runs cannot be compared as closely: between two nearly tied images at distance d, a step
multiplies earlier rounding errors by up to d^2 / (4 sigma^2).
"""

import torch


class Recorded:
    """Wraps a denoiser; ``calls`` holds (x, sigma, labels, x0) for each call."""

    def __init__(self, denoiser):
        self.denoiser, self.store, self.calls = denoiser, denoiser.store, []

    def __call__(self, x, sigma, labels=None):
        x0 = self.denoiser(x, sigma, labels)
        self.calls.append((x, sigma, labels, x0))
        return x0

    def furthest(self, other):
        """The largest absolute difference between recorded values and those of ``other``."""
        return float(self._differences(other).abs().max())

    def furthest_rmse(self, other):
        """The largest root mean square difference between two images."""
        return float(self._differences(other).square().mean(1).sqrt().max())

    def _differences(self, other):
        assert self.calls
        pairs = [(other(*call).double(), x0.double()) for *call, x0 in self.calls]
        return torch.cat([(other_x0 - own_x0).flatten(1) for other_x0, own_x0 in pairs])
