"""A stand-in for a trained network: a closed-form denoiser whose weights are in a file."""

from types import SimpleNamespace

import torch


class Shrinking:
    """The Wiener filter of unit covariance, D(x, sigma) = mean + (x - mean) / (1 + sigma^2).
    ``calls`` counts its calls."""

    def __init__(self, mean, shape):
        self.mean, self.store = mean, SimpleNamespace(shape=shape, is_pixels=True)
        self.calls = 0

    def __call__(self, x, sigma, labels=None):
        self.calls += 1
        level = torch.as_tensor(sigma).reshape(-1, *[1] * (x.ndim - 1))
        shift = 0.0 if labels is None else 0.01 * float(torch.as_tensor(labels).float().mean())
        return self.mean + shift + (x - self.mean) / (1 + level**2)


def stand_in(store, path):
    """Save the store's mean image as the weights; return a function that loads them."""
    torch.save(store.images().mean(0), path)

    def load(checkpoint, device="cpu"):
        return Shrinking(torch.load(checkpoint, weights_only=True), store.shape)

    return load
