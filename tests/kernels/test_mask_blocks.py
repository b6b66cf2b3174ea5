import torch
from hypothesis import given
from hypothesis import strategies as st

from golddiff.device.order import tile_order
from golddiff.kernels.mask_blocks import NARROW, WIDE, MaskBlocks, Tiling, block_share

tilings = st.builds(
    Tiling, st.sampled_from([16, 32]), st.sampled_from([16, 64]), st.just(16), st.just(4)
)


@given(st.integers(1, 100), st.floats(0, 0.2), st.integers(0, 99), tilings)
def test_blocks_hold_the_mask_and_no_empty_block(d, density, seed, tiling):
    mask = torch.rand(d, d, generator=torch.Generator().manual_seed(seed)) < density
    blocks = MaskBlocks.of(mask, tiling)
    assert bool((blocks.dense() == mask).all())
    assert bool(blocks.values.any(dim=2).any(dim=1).all())
    total = -(-d // tiling.inputs) * -(-d // tiling.outputs)
    assert abs(block_share(mask, tiling) - len(blocks.inputs) / total) < 1e-6


def near(shape, reach):
    """Masks of all pixels within a reach, in tile order."""
    _, h, w = shape
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    place = torch.stack([y.flatten(), x.flatten()], 1).repeat(shape[0], 1)[tile_order(shape)]
    return (place[:, None] - place[None]).abs().amax(dim=2) <= reach


def test_local_masks_touch_few_blocks_and_get_narrow_ones():
    local, wide = near((3, 32, 32), 1), near((3, 32, 32), 32)
    assert block_share(local, NARROW) < 0.3
    assert MaskBlocks.best(local).tiling == NARROW
    assert MaskBlocks.best(wide).tiling == WIDE
