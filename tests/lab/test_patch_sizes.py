"""``golddiff oracle patch-sizes``: a network's patch sizes, and the command's file."""

import json
import math

import numpy as np
import pytest
import torch

from golddiff import ArgumentError, Kamb
from golddiff.cli import run
from golddiff.estimators.kamb import preset
from golddiff.samplers import initial_noise
from golddiff_lab.patch_sizes import LEVELS, Settings, calibrated


class Network:
    """A denoiser as a loaded network, with the noise levels of DDPM."""

    sigma_min, sigma_max = 0.01, 157.4
    conditional = False

    def __init__(self, denoiser):
        self.denoiser, self.store = denoiser, denoiser.store

    def __call__(self, x, sigma, labels=None):
        return self.denoiser(x, sigma, labels)


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(60, (1, 9, 9)))


@pytest.mark.parametrize("boundary", ["zeros", "none"])
def test_the_patch_sizes_of_a_patch_denoiser_are_recovered(store, boundary):
    sizes = [(0.3, 3), (0.9, 5), (2.5, 7)]
    network = Network(Kamb(store, sizes, boundary))
    calibration = calibrated(network, store, Settings((3, 5, 7), boundary, samples=3))
    assert [size for _, size in calibration.pairs] == [
        network.denoiser.patch_size(sigma) for sigma, _ in calibration.pairs
    ]
    assert calibration.cosines.shape == (LEVELS, 3, 3)
    kamb = Kamb(store, calibration.pairs, boundary)
    assert all(kamb.patch_size(sigma) == size for sigma, size in calibration.pairs)


def test_the_noise_levels_are_the_authors_levels(store):
    calibration = calibrated(Network(Kamb(store, 3)), store, Settings((3,), samples=1))
    assert calibration.sigmas[:-1] == pytest.approx([s for s, _ in preset("mnist_unet_zeros")])
    assert calibration.sigmas[-1] == pytest.approx(math.tan(math.pi / 2 / 1.008))


def kamb_mean(x, sigma, images, size):
    """Kamb with boundary "none" in float64: x (H, W), images (N, H, W)."""
    reach, mean = size // 2, np.empty_like(x)
    for u in np.ndindex(x.shape):
        patch = tuple(slice(max(0, p - reach), p + reach + 1) for p in u)
        logits = -np.square(x[patch] - images[:, *patch]).sum((1, 2)) / (2 * sigma**2)
        weights = np.exp(logits - logits.max())
        mean[u] = weights @ images[:, *u] / weights.sum()
    return mean


def test_patch_sizes_agree_with_the_authors_procedure(store):
    """Their loop in float64: VP steps, the size of highest cosine between scores, the median."""
    generator = torch.Generator().manual_seed(4)
    blur = torch.randn(81, 81, generator=generator).double() / 30 + torch.eye(81).double()

    def network(x, sigma, labels=None):  # a linear network
        predicted = x.flatten(1).double() @ blur / (1 + sigma**2)
        return predicted.float().reshape(x.shape)

    network.store, network.sigma_min, network.sigma_max = store, 0.01, 157.4
    calibration = calibrated(network, store, Settings((3, 5, 9), "none", samples=4, seed=1))
    images, chosen = store.images().double().numpy()[:, 0], np.empty((LEVELS, 4))
    for sample, start in enumerate(initial_noise(4, store.shape, 1)):
        x = start[None].double()
        for i in range(LEVELS, 0, -1):
            beta, before = (math.sin(math.pi / 2 * t / LEVELS / 1.008) ** 2 for t in (i, i - 1))
            alpha, sigma = 1 - beta, math.sqrt(beta / (1 - beta))
            x0 = network(x / alpha**0.5, sigma).double()
            eps, cosines = (x - alpha**0.5 * x0) / beta**0.5, []
            for size in (3, 5, 9):
                patch_mean = kamb_mean((x / alpha**0.5)[0, 0].numpy(), sigma, images, size)
                score = (alpha**0.5 * torch.from_numpy(patch_mean) - x[0, 0]) / beta
                cosines.append(float(torch.cosine_similarity(score.ravel(), -eps.ravel(), dim=0)))
            chosen[i - 1, sample] = (3, 5, 9)[int(np.argmax(cosines))]
            x = ((1 - before) / alpha) ** 0.5 * (x - beta**0.5 * eps) + before**0.5 * eps
    assert (calibration.chosen == chosen).mean() > 0.95  # near ties may fall either way
    assert [size for _, size in calibration.pairs] == np.sort(chosen)[:, 1].tolist()


@pytest.fixture
def command(store, monkeypatch, tmp_path):
    """The command without options; its network is a stand-in, and no file is read."""
    network = Network(Kamb(store, 5))
    monkeypatch.setattr("golddiff.oracles.load.load_oracle", lambda path: network)
    monkeypatch.chdir(tmp_path)
    return ("oracle", "patch-sizes", "network.safetensors", str(store.path))


def test_the_commands_file_is_accepted_as_patch_size(command, store, capsys, fails, tmp_path):
    options = ("--sizes", "3,5", "--samples", "2", "--images", "50", "--json", "sizes.json")
    assert run((*command, *options)) == 0
    assert "sigma   80.210: " in capsys.readouterr().out
    result = json.loads((tmp_path / "sizes.json").read_text())
    assert result["images"] == 50
    assert len(result["patch_sizes"]) == LEVELS
    sample = ("sample", "--store", str(store.path), "--method", "kamb", "--n", "1", "--steps", "2")
    assert run((*sample, "--patch-size", "sizes.json", "--out", "made.png")) == 0
    (tmp_path / "other.json").write_text('{"patch_sizes": 3}')
    for name in ("none.json", "other.json"):
        line = fails(*sample, "--patch-size", name, "--out", "made.png")
        assert f"--patch-size: got {name}, expected a file of golddiff oracle" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sizes", "3,4"), "--sizes: got 4"),
        (("--sizes", "3;4"), "--sizes: got '3;4'"),
        (("--samples", "0"), "--samples: got 0"),
        (("--images", "0"), "--images: got 0"),
        (("--boundary", "round"), "--boundary: got 'round'"),
        (("--json", "."), "--json"),
    ],
)
def test_bad_options_are_refused_before_any_work(command, fails, monkeypatch, options, message):
    monkeypatch.setattr("golddiff_lab.patch_sizes.calibrated", None)
    assert message in fails(*command, *options)


def test_a_network_of_another_image_shape_is_refused(store, make_store, smooth_images):
    other = make_store(smooth_images(10, (1, 6, 6)))
    with pytest.raises(ArgumentError, match="is for images of shape"):
        calibrated(Network(Kamb(other, 3)), store, Settings())
