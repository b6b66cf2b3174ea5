"""A denoiser whose calls are kept, so that another can be compared with it at the same x.

Two whole runs cannot be compared as closely: where two images d apart are nearly tied, a step
enlarges the rounding of those before it by up to d^2 / (4 sigma^2).
"""

import torch


class Recorded:
    """Answers as its denoiser does; ``calls`` are (x, sigma, labels, answer)."""

    def __init__(self, denoiser):
        self.denoiser, self.store, self.calls = denoiser, denoiser.store, []

    def __call__(self, x, sigma, labels=None):
        x0 = self.denoiser(x, sigma, labels)
        self.calls.append((x, sigma, labels, x0))
        return x0

    def furthest(self, other):
        """The largest difference of any value between these answers and another's."""
        return float(self._differences(other).abs().max())

    def furthest_rmse(self, other):
        """The largest root mean square difference of any image."""
        return float(self._differences(other).square().mean(1).sqrt().max())

    def _differences(self, other):
        assert self.calls
        pairs = [(other(*call).double(), x0.double()) for *call, x0 in self.calls]
        return torch.cat([(theirs - mine).flatten(1) for theirs, mine in pairs])
