"""Compare methods with a network of your own, from the same noise.

Usage: python compare.py     the network here is untrained: replace it by yours
"""

import torch

import golddiff

METHODS = ("recommended", "network-like", "golddiff-pca", "wiener")


class Net(torch.nn.Module):
    """Called as net(x_t, t); trained to return the noise."""

    def __init__(self, d):
        super().__init__()
        self.layer = torch.nn.Linear(d, d)

    def forward(self, x, t):
        """The noise in x at the timesteps t."""
        return self.layer(x.flatten(1)).reshape(x.shape)


def main():
    """Print r2 and MSE of each method to the network's pictures."""
    store = golddiff.load("digits")
    network = golddiff.Oracle(Net(store.d), "eps", shape=store.shape)
    reference = golddiff.sample(network, n=8, seed=0).images
    for name in METHODS:
        made = golddiff.sample(golddiff.create(name, store), n=8, seed=0).images
        r2, mse = golddiff.metrics.r2(made, reference), golddiff.metrics.mse(made, reference)
        print(f"{name:14} r2 {r2:6.3f}  MSE {mse:.4f}")


if __name__ == "__main__":
    main()
