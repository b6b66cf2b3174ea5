"""deepinv's samplers against the exact posterior: the command and its parts."""

import json

import pytest
import torch

from golddiff.cli import run
from golddiff.estimators.optimal import Optimal
from golddiff_lab.paper import posterior_samplers
from tests.deepinv_for_tests import deepinv

assert deepinv


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(40, (1, 8, 8)))


def test_the_averaging_operator_pools_and_its_adjoint_agrees():
    physics = posterior_samplers.averaged((3, 8, 12))
    x = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(physics.A(x), torch.nn.functional.avg_pool2d(x, 4), atol=1e-6)
    assert torch.allclose(physics.V(physics.V_adjoint(x)), x, atol=1e-5)
    y = physics.A(x)
    assert float((physics.A_adjoint(y) * x).sum()) == pytest.approx(
        float(y.square().sum()), rel=1e-4
    )


def test_exact_draws_have_the_exact_mean_spread_and_coverage(store):
    physics = posterior_samplers.averaged(store.shape)
    problem = posterior_samplers.Problem(Optimal(store), physics, 0.5, 3, seed=0)
    logits = -(problem.y[:, None] - physics.A((store.images() + 1) / 2)).square() / (2 * 0.5**2)
    weights = torch.softmax(logits.flatten(2).sum(2).double(), dim=1)
    images = store.images().double()
    mean = torch.einsum("bn,nchw->bchw", weights, images)
    assert (problem.exact.mean - mean).abs().max() < 1e-5
    second = torch.einsum("bn,nchw->bchw", weights, images**2)
    assert (problem.exact.variance - (second - mean**2)).abs().max() < 1e-5
    scores = posterior_samplers.scores(problem, problem.exact.draw(2000, seed=9))
    assert scores["error"] < 0.03
    assert scores["spread"] == pytest.approx(scores["exact_spread"], rel=0.03)
    assert 0.89 < scores["coverage"] < 1


def test_a_trial_run_writes_every_sampler(store, tmp_path, monkeypatch):
    monkeypatch.setattr(posterior_samplers, "DRAWS", 2)
    monkeypatch.setattr(posterior_samplers, "INTERVAL_DRAWS", 20)
    monkeypatch.setattr(posterior_samplers, "NOISES", {"mnist": (0.5,), "cifar10": (0.5,)})
    command = ["reproduce", "posterior-samplers", "--quick", "--n", "2", "--out", str(tmp_path)]
    assert run([*command, "--data", f"mnist={store.path}"]) == 0
    rows = json.loads((tmp_path / "posterior-samplers.json").read_text())["rows"]
    samplers = [posterior_samplers.EXACT, *posterior_samplers.SAMPLERS]
    assert [row["sampler"] for row in rows] == samplers * 6
    assert all(row["error"] >= 0 for row in rows)
    page = (tmp_path / "posterior-samplers.md").read_text()
    assert "cifar10: no data here" in page
    assert "mnist, 40 images; prior: a mixture of Gaussians; noise 0.5" in page
