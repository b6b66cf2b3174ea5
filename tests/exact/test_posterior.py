"""The exact posterior equals float64 references written from the equations."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import golddiff
from golddiff.system.errors import ArgumentError
from tests.conftest import float64_images

SIGMAS = (0.02, 0.1, 0.3, 0.7, 1.5, 3.0, 6.0, 12.0, 30.0, 61.0)


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(70, (2, 5, 5)), torch.arange(70) % 3)


def log_terms(store, x, sigma, prior):
    """log(p_i N(x; x_i, sigma^2 I)) of all queries and images, (B, N)."""
    images = float64_images(store)
    squares = ((x.double().numpy().reshape(len(x), 1, -1) - images) ** 2).sum(axis=2)
    level = np.broadcast_to(np.asarray(sigma, np.float64), (len(x),))[:, None]
    size = store.d * (np.log(level) + 0.5 * np.log(2 * np.pi))
    prior = np.broadcast_to(prior, squares.shape)
    return prior - np.logaddexp.reduce(prior, axis=1)[:, None] - squares / (2 * level**2) - size


def class_prior(store, labels):
    same = store.labels.numpy() == np.asarray(labels)[:, None]
    return np.where(same, 0.0, -np.inf)


def optimal(store, x, sigma, prior):
    """Mean, covariance and log density of each query."""
    logs, images = log_terms(store, x, sigma, prior), float64_images(store)
    density = np.logaddexp.reduce(logs, axis=1)
    weights = np.exp(logs - density[:, None])
    mean = weights @ images
    deviations = images - mean[:, None]
    return mean, (weights[..., None] * deviations).swapaxes(1, 2) @ deviations, density


def flat(images):
    return images.double().numpy().reshape(len(images), -1)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("labels", [None, [0, 2, 1, 1]])
def test_optimal_is_bayes_rule(store, queries, sigma, labels):
    x = queries(store, sigma)
    prior = 0.0 if labels is None else class_prior(store, labels)
    mean, covariance, density = optimal(store, x, sigma, prior)
    posterior = golddiff.Optimal(store).posterior(x, sigma, labels)
    assert np.abs(flat(posterior.mean) - mean).max() < 1e-5
    assert np.abs(flat(posterior.variance) - np.einsum("bdd->bd", covariance)).max() < 1e-5
    assert np.allclose(posterior.log_density.numpy(), density, rtol=1e-6)
    values, vectors = posterior.directions(3)
    expected = np.linalg.eigvalsh(covariance)[:, :-4:-1]
    assert np.abs(values.numpy() - expected).max() < 1e-5
    units = vectors.double().reshape(len(x), 3, -1).numpy()
    assert np.abs(np.einsum("bkd,bde,bke->bk", units, covariance, units) - expected).max() < 1e-5
    assert np.allclose(np.linalg.norm(units, axis=2), 1, atol=1e-5)


def test_a_posterior_of_one_image_has_no_variance(make_store):
    store = make_store(torch.randn(9, 3, 8, 8, generator=torch.Generator().manual_seed(0)).sign())
    posterior = golddiff.Optimal(store).posterior(store.images([4]) + 0.01, 0.1)
    values, vectors = posterior.directions(2)
    assert values.abs().max() == 0
    assert torch.allclose(vectors.flatten(2).norm(dim=2), torch.ones(1, 2))


def test_a_posterior_of_two_images_varies_in_the_direction_between_them(make_store, smooth_images):
    pairs = [smooth_images(2, (1, 9, 9), seed) for seed in range(60)]  # ARPACK fails for a few
    store = make_store(torch.cat(pairs), torch.arange(120) // 2)
    a, b = store.images().double().reshape(60, 2, 81).unbind(dim=1)
    x = ((a + b) / 2).reshape(60, 1, 9, 9)
    posterior = golddiff.Optimal(store).posterior(x, 10.0, range(60))
    values, vectors = posterior.directions(30)
    variances = (a - b).square().sum(dim=1) / 4  # both have weight 1/2
    assert torch.allclose(values[:, 0], variances, rtol=1e-5)
    assert (values >= 0).all()
    assert values[:, 1:].max() < 1e-7
    units = vectors.double().flatten(2)
    assert torch.allclose(units @ units.mT, torch.eye(30).double(), atol=1e-5)
    of_one = golddiff.Optimal(store).posterior(x[:1], 10.0, 0)
    assert of_one.directions(81)[0].shape == (1, 81)  # more than an iterative solver finds


@pytest.mark.parametrize("sigma", [1e-3, 1e-6, 1e-15])
def test_the_gradient_is_0_where_one_image_has_all_the_weight(make_store, sigma):
    """The Jacobian is covariance / sigma^2: rounding of the covariance would be divided too."""
    store = make_store(3 * torch.randn(9, 4, 6, 6, generator=torch.Generator().manual_seed(0)))
    x = (store.images([2, 4]) + sigma).requires_grad_()
    golddiff.Optimal(store)(x, sigma).square().sum().backward()
    assert x.grad.abs().max() < 1e-6


def test_derivatives_in_sigma_are_finite_for_data_of_any_scale(make_store):
    """An image that a query lacks has a log weight that is divided by 1 / (2 sigma^2)."""
    store = make_store(1e6 * torch.randn(50, 2, generator=torch.Generator().manual_seed(0)))
    x, sigma = store.images([0, 1]) + 2e4, torch.full((2,), 2e4).requires_grad_()
    golddiff.Optimal(store)(x, sigma).sum().backward()
    together, sigma.grad = sigma.grad.clone(), None
    for i in range(2):
        golddiff.Optimal(store)(x[i : i + 1], sigma[i]).sum().backward()
    torch.testing.assert_close(together, sigma.grad)


@pytest.mark.parametrize("method", [golddiff.Optimal, golddiff.PCA, golddiff.Kamb])
def test_usual_queries_of_extreme_noise_are_denoised_and_others_refused(make_store, method):
    store = make_store(1e3 * torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    noise = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    out = method(store)(1e16 * noise, 1e16)
    # Patches of other positions enter Kamb's mean too.
    assert (out - store.images().mean(dim=0)).abs().max() < (1e3 if method is golddiff.Kamb else 1)
    assert method(store)(store.images([3]), 1e-9).isfinite().all()
    with pytest.raises(ArgumentError, match=r"has norm 8e\+10, expected at most .* at sigma 1e-09"):
        method(store)(torch.full((1, 1, 8, 8), 1e10), 1e-9)
    # In a batch, the query furthest beyond its usual norm need not be the one that is refused.
    mixed = torch.cat([torch.full((1, 1, 8, 8), 1e10), torch.full((1, 1, 8, 8), 1e9)])
    with pytest.raises(ArgumentError, match="x: image 1 of the batch has norm 8e"):
        method(store)(mixed, torch.tensor([1.0, 1e-9]))


@pytest.mark.parametrize("method", [golddiff.Optimal, golddiff.Wiener])
def test_the_sigma_gradient_of_the_score_equals_finite_differences(store, queries, method):
    d, x, step = method(store), queries(store, 0.7), 1e-3
    sigma = torch.tensor([0.6, 0.7, 0.8, 2.0], dtype=torch.float64, requires_grad=True)
    d.score(x, sigma).sum().backward()
    with torch.no_grad():
        up, down = (
            (d.posterior(x, level).mean.double() - x).flatten(1).sum(dim=1) / level**2
            for level in (sigma + step, sigma - step)
        )
    assert torch.allclose(sigma.grad, (up - down) / (2 * step), rtol=5e-3, atol=5e-2)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_jacobian_of_optimal_is_its_covariance(store, queries, sigma):
    x = queries(store, sigma).requires_grad_()
    level = torch.tensor(sigma, dtype=torch.float64, requires_grad=True)
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    (golddiff.Optimal(store)(x, level) * u).sum().backward()
    mean, covariance, _ = optimal(store, x.detach(), sigma, 0.0)
    expected = np.einsum("bde,be->bd", covariance, flat(u)) / sigma**2
    assert np.abs(flat(x.grad) - expected).max() < 1e-4 * max(1, np.abs(expected).max())
    logs, images = log_terms(store, x.detach(), sigma, 0.0), float64_images(store)
    weights = np.exp(logs - np.logaddexp.reduce(logs, axis=1)[:, None])
    squares = ((flat(x.detach())[:, None] - images) ** 2).sum(axis=2)
    along = np.einsum("bnd,bd->bn", images - mean[:, None], flat(u))
    slope = (weights * along * squares).sum() / sigma**3
    assert abs(float(level.grad) - slope) < 1e-4 * max(1, abs(slope))


def test_jacrev_gives_the_posterior_covariance_over_the_variance(store, queries):
    d, sigma = golddiff.Optimal(store), 3.0
    x = queries(store, sigma, 1)
    jacobian = torch.func.jacrev(lambda query: d(query, sigma))(x).reshape(store.d, store.d)
    _, (covariance,), _ = optimal(store, x, sigma, 0.0)
    np.testing.assert_allclose(jacobian.numpy(), covariance / sigma**2, atol=1e-6)


@pytest.mark.parametrize(
    "make", [golddiff.PSPCSquare, golddiff.SCFDM, golddiff.NearestImage, golddiff.network_like]
)
def test_a_gradient_that_a_method_lacks_is_refused_with_the_reason(store, queries, make):
    x = queries(store, 1.0, 1).requires_grad_()
    with pytest.raises(
        golddiff.ArgumentError, match="a call needs it only if x or sigma requires a grad"
    ):
        make(store)(x, 1.0)


def test_func_vjp_equals_backward_and_second_derivatives_are_refused(store, queries):
    d, x = golddiff.Optimal(store), queries(store, 1.0)
    level = torch.tensor([0.7, 1.0, 2.0, 5.0])
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    mean, vjp = torch.func.vjp(d, x, level)
    inputs = x.clone().requires_grad_(), level.clone().requires_grad_()
    out = d(*inputs)
    (out * u).sum().backward()
    assert torch.equal(mean, out)
    assert all(torch.equal(a, b.grad) for a, b in zip(vjp(u), inputs, strict=True))
    (slope,) = torch.autograd.grad(d(*inputs).square().sum(), inputs[0], create_graph=True)
    with pytest.raises(golddiff.ArgumentError, match="second derivatives"):
        slope.sum().backward()


def test_forward_derivatives_and_vmap_are_refused(store, queries):
    d, x = golddiff.Optimal(store), queries(store, 1.0)
    with forward_ad.dual_level(), pytest.raises(golddiff.ArgumentError, match=r"^x: .*jvp"):
        d(forward_ad.make_dual(x, x), 1.0)
    level = torch.tensor(1.0)
    with pytest.raises(golddiff.ArgumentError, match=r"^sigma: .*jvp"):
        torch.func.jvp(lambda sigma: d(x, sigma), (level,), (level,))
    with pytest.raises(golddiff.ArgumentError, match=r"^x: .*vmap"):
        torch.func.vmap(lambda query: d(query[None], 1.0))(x)


@pytest.mark.parametrize(
    "derivative",
    [
        torch.func.hessian,
        lambda f: torch.func.jacrev(torch.func.jacrev(f)),
        lambda f: partial(torch.autograd.functional.hessian, f),
        lambda f: partial(torch.autograd.functional.hessian, f, vectorize=True),
        lambda f: partial(torch.autograd.functional.jacobian, f, vectorize=True),
    ],
)
def test_other_derivatives_than_one_backward_pass_are_refused(store, queries, derivative):
    d, x = golddiff.Optimal(store), queries(store, 1.0)
    with pytest.raises(golddiff.ArgumentError, match=r"^denoiser: got .*, expected [^\n]*$"):
        derivative(lambda query: d(query, 1.0).square().sum())(x)


@pytest.mark.parametrize("derivative", [torch.func.jacrev, torch.func.grad])
def test_second_derivatives_of_a_linear_function_of_the_mean_are_refused_too(
    store, queries, derivative
):
    """The gradient of sum(D) does not depend on the mean, but does on x: 0 would be wrong."""
    d, x = golddiff.Optimal(store), queries(store, 1.0, 1)
    slope = torch.func.grad(lambda query: d(query, 1.0).sum())
    with pytest.raises(golddiff.ArgumentError, match="second derivatives"):
        derivative(lambda query: slope(query).sum())(x)
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(d(leaf, 1.0).sum(), leaf, create_graph=True)
    with pytest.raises(golddiff.ArgumentError, match="second derivatives"):
        (slope.square().sum() + leaf.sum()).backward()


@pytest.mark.parametrize(
    "method", [golddiff.Optimal, golddiff.PCA, golddiff.Wiener, golddiff.GaussianMixture]
)
def test_outputs_have_a_graph_only_if_gradients_are_enabled(store, queries, method):
    d, x = method(store), queries(store, 1.0).requires_grad_()
    assert d(x, 1.0).requires_grad
    assert not d(x.detach(), 1.0).requires_grad
    with torch.no_grad():
        assert not d(x, 1.0).requires_grad
    assert torch.allclose(d(x, 1.0), d(x.detach(), 1.0), atol=1e-5)


def test_posteriors_with_sigma_and_label_per_query(store, queries):
    d, x = golddiff.Optimal(store), queries(store, 1.0)
    sigma, labels = torch.tensor([0.4, 3.0, 0.4, 9.0]), [0, 1, 2, 1]
    together = d.posterior(x, sigma, labels)
    for i in range(4):
        alone = d.posterior(x[i : i + 1], float(sigma[i]), labels[i])
        assert torch.allclose(together.variance[i], alone.variance[0], atol=1e-6)
        assert together.log_density[i] == pytest.approx(float(alone.log_density[0]), rel=1e-9)


@pytest.mark.parametrize("sigma", [0.4, 1.5, 4.0])
def test_frequencies_of_draws_equal_the_posterior_weights(store, queries, sigma):
    x = queries(store, sigma, b=2)
    logs = log_terms(store, x, sigma, 0.0)
    weights = np.exp(logs - np.logaddexp.reduce(logs, axis=1)[:, None])
    drawn = golddiff.Optimal(store).posterior(x, sigma).draw(4000, seed=5)
    assert drawn.shape == (4000, 2, *store.shape)
    images = float64_images(store)
    for q in range(2):
        draws = flat(drawn[:, q])
        rows = ((draws[:, None] - images[None]) ** 2).sum(axis=2).argmin(axis=1)
        assert np.abs(draws - images[rows]).max() < 1e-6
        frequencies = np.bincount(rows, minlength=store.n) / 4000
        deviations = np.sqrt(weights[q] * (1 - weights[q]) / 4000)
        assert (np.abs(frequencies - weights[q]) < 4.5 * deviations + 2 / 4000).all()


@pytest.mark.parametrize(
    "method", [golddiff.Optimal, lambda s: golddiff.GaussianMixture(s, components=3)]
)
def test_a_draw_depends_only_on_its_seed_index_query_and_position(store, queries, method):
    d, x = method(store), queries(store, 3.0)
    posterior = d.posterior(x, 3.0)
    few, many = posterior.draw(3, seed=1), posterior.draw(7, seed=1)
    assert torch.allclose(many[:3], few, atol=1e-5)
    assert not torch.allclose(posterior.draw(3, seed=2), few, atol=0.1)
    assert torch.allclose(d.posterior(x[:1], 3.0).draw(3, seed=1)[:, 0], few[:, 0], atol=1e-5)
    # Queries of other levels and classes do not change it.
    mixed = d.posterior(x, torch.tensor([9.0, 3.0, 0.1, 3.0]), [0, 1, 2, 2])
    alike = d.posterior(x, 3.0, [1, 1, 2, 2])
    for i in (1, 3):
        assert torch.allclose(mixed.draw(3)[:, i], alike.draw(3)[:, i], atol=1e-5)


def test_golden_posteriors_equal_the_mean_and_have_gradients(make_store, smooth_images, queries):
    store = make_store(smooth_images(1500, (3, 16, 16)))
    x = queries(store, 2.0, b=2)
    for schedule in (golddiff.PaperSchedule(), golddiff.AdaptiveSchedule(0.05)):
        for base in (golddiff.Optimal(store), golddiff.PCA(store, 0.3)):
            d = golddiff.GoldDiff(base, schedule)
            posterior = d.posterior(x, 2.0)
            assert torch.allclose(posterior.mean, d(x, 2.0), atol=2e-5)
            assert (posterior.variance >= 0).all()
            query = x.clone().requires_grad_()
            d(query, 2.0).sum().backward()
            assert torch.isfinite(query.grad).all()
            assert query.grad.abs().max() > 0


def test_gradients_with_cached_and_recomputed_logits_agree(store, queries, monkeypatch):
    """The memory limit decides which one, without changing the result."""
    x, inputs = queries(store, 0.5, 3), []

    def mean(share):
        monkeypatch.setattr("golddiff.store.exact.CACHE_SHARE", share)
        inputs.append(x.clone().requires_grad_())
        return golddiff.Optimal(store)(inputs[-1], 0.5).square().sum()

    mean(0).backward()
    cached = mean(1)
    monkeypatch.delattr("golddiff.estimators.optimal.weights_of")
    cached.backward()
    assert torch.allclose(inputs[0].grad, inputs[1].grad, rtol=1e-6, atol=1e-9)


def test_caching_logits_works_at_the_smallest_memory_limit(store, queries):
    x = queries(store, 0.5, 1)
    small = golddiff.Optimal(store, memory_limit=16 * 8 * store.n)
    assert torch.equal(small.posterior(x, 0.5).mean, golddiff.Optimal(store).posterior(x, 0.5).mean)
