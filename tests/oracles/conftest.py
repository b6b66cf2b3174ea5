"""Small U-Nets with random weights that make every branch contribute."""

import pytest
import torch

from golddiff.oracles.unet import TABLE, UNet, UNetConfig


@pytest.fixture(scope="session")
def make_unet():
    """make_unet(multipliers, image_channels, classes, seed): 32 channels, random weights."""

    def make(multipliers=(1, 2), image_channels=1, classes=0, blocks=1, seed=0, groups=32):
        sizes = UNetConfig(32, multipliers, blocks, image_channels, classes, groups=groups)
        network = UNet(sizes)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, p in network.named_parameters():
                if name == TABLE:
                    continue
                noise = torch.randn(p.shape, generator=generator)
                # A zero initialisation would hide whole branches.
                scale = p[0].numel() ** -0.5 if p.ndim > 1 else 0.2
                p.copy_(noise * scale + (1.0 if _is_gain(name) else 0.0))
        return network.eval()

    return make


def _is_gain(name):
    groups = ("block1.0.weight", "block2.0.weight", "group_norm.weight", "tail.0.weight")
    return name.endswith(groups)
