import pytest
import torch

from golddiff.device.order import padded_width, tile_order


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (4, 9, 5), (7,), (1, 1, 1)])
def test_tile_order_is_an_order_of_all_values(shape):
    order = tile_order(shape)
    assert torch.equal(order.sort().values, torch.arange(torch.tensor(shape).prod()))


def test_a_run_of_64_is_one_channel_of_one_square():
    place = tile_order((3, 16, 24)).view(-1, 64)
    channel, y, x = place // 384, place // 24 % 16, place % 24
    for part in (channel, y // 8, x // 8):
        assert bool((part == part[:, :1]).all())


def test_rows_are_padded_to_whole_blocks():
    assert [padded_width(d) for d in (1, 128, 784, 12_288)] == [128, 128, 896, 12_288]
