import numpy as np
import pytest
import torch

from golddiff.device.order import tile_order
from golddiff.estimators import reference_kamb
from tests.kernels.gpu import DEVICE, OFFSET, SCALE, random_rows, stored_images

from golddiff.kernels import kamb_torch, kamb_triton  # isort: skip (after the check)
from golddiff.kernels.patch_tables import PatchTables  # isort: skip


def problem(shape, sigma, k=3, b=2):
    generator = torch.Generator().manual_seed(1)
    d = int(np.prod(shape))
    order = tile_order(shape)
    pixels, values = stored_images(generator, 5, d, d)
    rows = random_rows(generator, 5, k, b)
    x = torch.from_numpy(values[:b]) + sigma * torch.randn(b, d, generator=generator).double()
    return pixels[:, order.to(DEVICE)].contiguous(), values, rows, x.float(), order


@pytest.mark.parametrize("kernels", [kamb_triton, kamb_torch])
@pytest.mark.parametrize("sigma", [0.05, 3.0, 60.0])
@pytest.mark.parametrize(
    ("shape", "patch", "boundary"),
    [((1, 5, 5), 3, "zeros"), ((2, 3, 4), 3, "circular"), ((3, 3, 4), 3, "none")],
)
def test_equals_the_equation_in_float64(kernels, shape, patch, boundary, sigma):
    pixels, values, rows, x, order = problem(shape, sigma)
    tables = PatchTables.of(shape, patch, boundary, torch.argsort(order).to(DEVICE), 16)
    partials = kernels.patch_partials(
        pixels, rows, None, x[:, order].to(DEVICE), sigma, tables, SCALE, OFFSET
    )
    found = torch.empty(len(x), len(order))
    found[:, tables.centres.long().flatten().cpu()] = partials.merged().mean().cpu()
    images = values.reshape(-1, *shape)
    exact = np.stack(
        [
            reference_kamb.kamb(q, sigma, images[r], patch, boundary).ravel()
            for q, r in zip(x.double().numpy().reshape(-1, *shape), rows.cpu().numpy(), strict=True)
        ]
    )
    np.testing.assert_allclose(found[:, torch.argsort(order)].numpy(), exact, atol=2e-5)


@pytest.mark.parametrize("sigma", [0.7, 3.0])
def test_log_weights_weigh_as_in_the_plain_twin(sigma):
    pixels, _, rows, x, order = problem((1, 4, 4), sigma, k=4)
    weights = torch.tensor([[0.0, 1.0, -torch.inf, -1.0]] * 2, device=DEVICE)
    tables = PatchTables.of((1, 4, 4), 3, "zeros", torch.argsort(order).to(DEVICE), 16)
    arguments = (pixels, rows, weights, x[:, order].to(DEVICE), sigma, tables, SCALE, OFFSET)
    triton, plain = (
        kernels.patch_partials(*arguments).merged().mean() for kernels in (kamb_triton, kamb_torch)
    )
    torch.testing.assert_close(triton, plain, rtol=1e-5, atol=1e-5)
