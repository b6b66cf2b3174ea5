"""What an actor with a GPU does, run by the device's code on the CPU: no GPU is needed."""

import numpy as np
import pytest
import torch

import golddiff
from golddiff.cluster.shard import Part, ShardServer, Supports
from golddiff.support import Support

METHODS = {
    "optimal": lambda s: golddiff.Optimal(s),
    "pca": lambda s: golddiff.PCA(s),
    "kamb": lambda s: golddiff.Kamb(s, 3),
    "kamb none": lambda s: golddiff.Kamb(s, 5, "none"),
}


# From sigma 1 on a device's masked sums take terms of half precision, see docs/gpu.md.
@pytest.mark.parametrize(("sigma", "tolerance"), [(0.7, 1e-5), (3.0, 2e-3)])
@pytest.mark.parametrize("method", METHODS)
def test_a_partial_posterior_on_a_device_is_the_cpus(
    make_store, smooth_images, queries, method, sigma, tolerance
):
    # Line by line, where no GPU compiles them, kernels over patches take seconds a channel.
    store = make_store(smooth_images(40, (1 if method == "kamb" else 3, 6, 6)))
    server = ShardServer(str(store.path))
    x = queries(store, sigma, 2).reshape(2, -1).numpy()
    estimator = METHODS[method](store).at_level(sigma)
    everything = Part(store.everything(None), 0, 0)
    weighted = [
        Support(np.arange(i, 40, i + 2), np.linspace(0, 1, len(range(i, 40, i + 2))))
        for i in range(2)
    ]
    for chosen in (Supports([everything], [0, 0]), Supports(weighted, [0, 1])):
        parts = []
        for device in (None, torch.device("cpu")):
            server.device = device
            _, part = server.posterior(estimator, x, sigma, chosen)
            parts.append(part)
        for name in ("log_max", "total", "weighted"):
            ours, theirs = (getattr(part, name) for part in parts)
            assert ours.shape == theirs.shape
        np.testing.assert_allclose(parts[1].mean(), parts[0].mean(), atol=tolerance)
        # And it merges with another shard's.
        both = [part.merge(parts[0]).mean() for part in parts]
        np.testing.assert_allclose(both[1], both[0], atol=tolerance)
