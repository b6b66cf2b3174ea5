"""golddiff oracle patch-sizes: what a network looks at, and the file that the command leaves."""

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
    """A denoiser as the command is given one: of the noise levels of DDPM."""

    sigma_min, sigma_max = 0.01, 157.4

    def __init__(self, denoiser):
        self.denoiser, self.store = denoiser, denoiser.store

    def __call__(self, x, sigma, labels=None):
        return self.denoiser(x, sigma, labels)


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(60, (1, 9, 9)))


@pytest.mark.parametrize("boundary", ["zeros", "none"])
def test_patch_denoisers_are_known_by_their_sizes(store, boundary):
    sizes = [(0.3, 3), (0.9, 5), (2.5, 7)]
    network = Network(Kamb(store, sizes, boundary))
    found = calibrated(network, store, Settings((3, 5, 7), boundary, samples=3))
    assert [size for _, size in found.pairs] == [
        network.denoiser.patch_size(sigma) for sigma, _ in found.pairs
    ]
    assert found.cosines.shape == (LEVELS, 3, 3)
    again = Kamb(store, found.pairs, boundary)  # they are what Kamb takes
    assert all(again.patch_size(sigma) == size for sigma, size in found.pairs)


def test_the_levels_are_those_of_the_authors(store):
    found = calibrated(Network(Kamb(store, 3)), store, Settings((3,), samples=1))
    assert found.sigmas[:-1] == pytest.approx([s for s, _ in preset("mnist_unet_zeros")])
    assert found.sigmas[-1] == pytest.approx(math.tan(math.pi / 2 / 1.008))


def patches_mean(x, sigma, images, size):
    """Boundary "none", in float64: x (H, W), images (N, H, W)."""
    reach, found = size // 2, np.empty_like(x)
    for u in np.ndindex(x.shape):
        near = tuple(slice(max(0, p - reach), p + reach + 1) for p in u)
        logits = -np.square(x[near] - images[:, *near]).sum((1, 2)) / (2 * sigma**2)
        weights = np.exp(logits - logits.max())
        found[u] = weights @ images[:, *u] / weights.sum()
    return found


def test_it_is_the_procedure_of_the_authors(store):
    """Their loop once more: steps of VP in float64, the highest cosine of scores, the median."""
    generator = torch.Generator().manual_seed(4)
    blur = torch.randn(81, 81, generator=generator).double() / 30 + torch.eye(81).double()

    def network(x, sigma, labels=None):  # any network will do: here a linear one
        predicted = x.flatten(1).double() @ blur / (1 + sigma**2)
        return predicted.float().reshape(x.shape)

    network.store, network.sigma_min, network.sigma_max = store, 0.01, 157.4
    found = calibrated(network, store, Settings((3, 5, 9), "none", samples=4, seed=1))
    images, chosen = store.images().double().numpy()[:, 0], np.empty((LEVELS, 4))
    for sample, start in enumerate(initial_noise(4, store.shape, 1)):
        x = start[None].double()
        for i in range(LEVELS, 0, -1):
            beta, before = (math.sin(math.pi / 2 * t / LEVELS / 1.008) ** 2 for t in (i, i - 1))
            alpha, sigma = 1 - beta, math.sqrt(beta / (1 - beta))
            x0 = network(x / alpha**0.5, sigma).double()
            eps, cosines = (x - alpha**0.5 * x0) / beta**0.5, []
            for size in (3, 5, 9):
                ours = patches_mean((x / alpha**0.5)[0, 0].numpy(), sigma, images, size)
                score = (alpha**0.5 * torch.from_numpy(ours) - x[0, 0]) / beta
                cosines.append(float(torch.cosine_similarity(score.ravel(), -eps.ravel(), dim=0)))
            chosen[i - 1, sample] = (3, 5, 9)[int(np.argmax(cosines))]
            x = ((1 - before) / alpha) ** 0.5 * (x - beta**0.5 * eps) + before**0.5 * eps
    assert (found.chosen == chosen).mean() > 0.95  # near ties may fall either way
    assert [size for _, size in found.pairs] == np.sort(chosen)[:, 1].tolist()


@pytest.fixture
def command(store, monkeypatch, tmp_path):
    """The command's words but for its options; the network's file is never read."""
    network = Network(Kamb(store, 5))
    monkeypatch.setattr("golddiff.oracles.load.load_oracle", lambda path: network)
    monkeypatch.chdir(tmp_path)
    return ("oracle", "patch-sizes", "network.safetensors", str(store.path))


def test_the_command_s_file_is_a_setting_of_kamb(command, store, capsys, tmp_path):
    options = ("--sizes", "3,5", "--samples", "2", "--images", "50", "--json", "sizes.json")
    assert run((*command, *options)) == 0
    assert "sigma   80.210: " in capsys.readouterr().out
    told = json.loads((tmp_path / "sizes.json").read_text())
    assert told["images"] == 50
    assert len(told["patch_sizes"]) == LEVELS
    sample = ("sample", "--store", str(store.path), "--method", "kamb", "--n", "1", "--steps", "2")
    assert run((*sample, "--patch-size", "sizes.json", "--out", "made.png")) == 0
    (tmp_path / "other.json").write_text('{"patch_sizes": 3}')
    for name in ("none.json", "other.json"):
        assert run((*sample, "--patch-size", name, "--out", "made.png")) == 2
        assert (
            f"--patch-size: got {name}, expected a file of golddiff oracle"
            in capsys.readouterr().err
        )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--sizes", "3,4"), "--sizes: got 4"),
        (("--sizes", "3;4"), "--sizes: got '3;4'"),
        (("--samples", "0"), "--samples: got 0"),
        (("--images", "0"), "--images: got 0"),
        (("--boundary", "round"), "--boundary: got 'round'"),
        (("--json", "."), "--json"),
    ],
)
def test_bad_options_are_refused_before_any_work(command, fails, monkeypatch, options, told):
    monkeypatch.setattr("golddiff_lab.patch_sizes.calibrated", None)
    assert told in fails(*command, *options)


def test_a_network_of_other_images_is_refused(store, make_store, smooth_images):
    other = make_store(smooth_images(10, (1, 6, 6)))
    with pytest.raises(ArgumentError, match="is for images of shape"):
        calibrated(Network(Kamb(other, 3)), store, Settings())
