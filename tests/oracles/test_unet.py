import math

import pytest
import torch

from golddiff.oracles.unet import TABLE, UNetConfig, sinusoids
from golddiff.system.errors import ArgumentError
from tests.oracles import direct


@pytest.mark.parametrize(
    ("side", "channels", "multipliers"), [(28, 1, (1, 2, 2)), (32, 3, (1, 2, 3, 4))]
)
def test_output_matches_the_direct_computation(make_unet, side, channels, multipliers):
    network = make_unet(multipliers, channels, blocks=2)
    x = torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(1))
    t = torch.tensor([3, 870])
    with torch.no_grad():
        out = network(x, t)
    expected = direct.eps(network.state_dict(), x, t, multipliers=multipliers, blocks=2)
    assert expected.std() > 0.1
    torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=0)


def test_classes_and_fractional_timesteps_match_the_direct_computation(make_unet):
    network = make_unet((1, 2), 3, classes=4, groups=8)
    x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    t, labels = torch.tensor([0.25, 17.5, 998.9]), torch.tensor([0, 3, 4])
    with torch.no_grad():
        out = network(x, t, labels)
        without = network(x, t)
    expected = direct.eps(
        network.state_dict(), x, t, labels, multipliers=(1, 2), blocks=1, groups=8
    )
    torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=0)
    assert (out - without).abs().max() > 1e-2


def test_table_holds_the_sinusoids_of_whole_timesteps(make_unet):
    table = make_unet().state_dict()[TABLE]
    assert table.shape == (1000, 32)
    t = torch.tensor([0, 1, 500, 999])
    torch.testing.assert_close(table[t], sinusoids(t.double(), 32))
    for column, angle in ((0, 999.0), (2, 999 / 10000 ** (2 / 32)), (30, 999 / 10000 ** (30 / 32))):
        assert math.isclose(table[999, column], math.sin(angle), abs_tol=1e-6)
        assert math.isclose(table[999, column + 1], math.cos(angle), abs_tol=1e-6)


def test_table_is_not_learned(make_unet):
    frozen = [name for name, p in make_unet().named_parameters() if not p.requires_grad]
    assert frozen == [TABLE]


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ({"channels": 48}, "channels"),
        ({"channels": 0}, "channels"),
        ({"groups": 0}, "groups"),
        ({"channels": 8192}, "channels"),
        ({"multipliers": ()}, "multipliers"),
        ({"multipliers": (1, 0)}, "multipliers"),
        ({"multipliers": (1,) * 9}, "multipliers"),
        ({"blocks": 0}, "blocks"),
        ({"image_channels": True}, "image_channels"),
        ({"classes": -1}, "classes"),
        ({"dropout": 1.0}, "dropout"),
    ],
)
def test_invalid_sizes_are_named(sizes, name):
    with pytest.raises(ArgumentError, match=f"^{name}: got"):
        UNetConfig(**{"channels": 32, "multipliers": (1, 2), **sizes}).check()
