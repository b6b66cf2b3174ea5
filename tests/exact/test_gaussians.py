"""Posteriors of Wiener and GaussianMixture follow from their density."""

import numpy as np
import pytest
import torch

import golddiff
from golddiff.estimators.gaussians import Gaussian, GaussiansPosterior


def log_density(x, sigma, parts):
    """Log sum_c w_c N(x; mu_c, C_c + sigma^2 I), with full matrices in torch."""
    logs = []
    for weight, mean, covariance in parts:
        whole = covariance + sigma**2 * torch.eye(len(mean), dtype=x.dtype)
        normal = torch.distributions.MultivariateNormal(mean, whole)
        logs.append(np.log(weight) + normal.log_prob(x))
    return torch.logsumexp(torch.stack(logs), dim=0)


def reference(x, sigma, parts):
    """Mean and covariance by Tweedie's formulas, and the log density they are derived from."""
    x = x.double().requires_grad_()
    density = log_density(x, sigma, parts)

    def mean(v):
        (slope,) = torch.autograd.grad(log_density(v, sigma, parts).sum(), v, create_graph=True)
        return v + sigma**2 * slope

    jacobian = torch.stack(
        [torch.autograd.functional.jacobian(lambda v: mean(v[None])[0], row) for row in x.detach()]
    )
    return mean(x).detach(), sigma**2 * jacobian, density.detach()


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(400, (1, 4, 4), seed=1), torch.arange(400) % 2)


def parts_of(denoiser, label=None):
    posterior = denoiser.exact(np.zeros((1, denoiser.store.d), np.float32), 1.0, label)
    return [
        (
            np.exp(component.log_weight),
            torch.from_numpy(component.mean),
            torch.from_numpy((component.vectors * component.values) @ component.vectors.T),
        )
        for component in posterior._components()
    ]


def wiener(store):
    return golddiff.Wiener(store)


def mixture(store):
    return golddiff.GaussianMixture(store, components=3, rank=8)


@pytest.mark.parametrize("make", [wiener, mixture])
@pytest.mark.parametrize("label", [None, 1])
@pytest.mark.parametrize("sigma", [0.05, 0.4, 2.0, 20.0])
def test_posterior_and_gradient_equal_tweedies_formulas(store, queries, make, label, sigma):
    d, x = make(store), queries(store, sigma, b=3)
    mean, covariance, density = reference(x.reshape(3, -1), sigma, parts_of(d, label))
    posterior = d.posterior(x, sigma, label)
    assert (posterior.mean.reshape(3, -1) - mean).abs().max() < 1e-5
    assert torch.allclose(d(x, sigma, label), posterior.mean, atol=1e-5)
    assert torch.allclose(posterior.log_density, density, rtol=1e-6)
    variance = torch.diagonal(covariance, dim1=1, dim2=2)
    assert (posterior.variance.reshape(3, -1) - variance).abs().max() < 1e-5
    values, _ = posterior.directions(2)
    assert (values - torch.linalg.eigvalsh(covariance).flip(1)[:, :2]).abs().max() < 1e-5
    query = x.clone().requires_grad_()
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    (d(query, sigma, label) * u).sum().backward()
    expected = torch.einsum("bde,be->bd", covariance, u.reshape(3, -1).double()) / sigma**2
    assert (query.grad.reshape(3, -1) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("make", [wiener, mixture])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_of_the_density_keep_their_digits_at_low_noise(make_store, make, dtype):
    """Regression: they came from a mean in float32, which is nearly x there."""
    points = torch.randn(300, 3, generator=torch.Generator().manual_seed(1))
    d = make(make_store(points * torch.tensor([1.0, 0.3, 2.0]) + 5))
    x = (d.store.images([3]).to(dtype) + 0.01).requires_grad_()
    sigma, level = (torch.tensor(0.01, dtype=torch.float64, requires_grad=True) for _ in range(2))
    d.log_density(x, sigma).backward()
    query = x.detach().float().double().requires_grad_()
    log_density(query, level, parts_of(d)).backward()
    assert torch.allclose(sigma.grad, level.grad, rtol=1e-5, atol=0)
    for score in (x.grad, d.score(x, sigma), d.score(x.detach(), 0.01)):
        assert torch.allclose(score.double(), query.grad, rtol=1e-5, atol=0)


def test_directions_of_one_gaussian_need_no_search(make_store, smooth_images, monkeypatch):
    """They are the eigenvectors of the covariance; other directions have no variance."""
    monkeypatch.setattr("scipy.linalg.eigh", None)
    store = make_store(smooth_images(40, (3, 12, 12), seed=1))
    x, factor = store.images([0, 1]), store.factor()
    values, vectors = golddiff.Wiener(store).posterior(x, 0.002).directions(41)
    shrunk = np.zeros(41)
    shrunk[:39] = np.sort(factor.eigenvalues / (factor.eigenvalues / 0.002**2 + 1))[::-1][:39]
    assert values.numpy() == pytest.approx(np.stack([shrunk, shrunk]), rel=1e-9, abs=1e-18)
    flat = vectors.reshape(2, 41, -1).double().numpy()
    assert np.abs(flat[0] @ flat[0].T - np.eye(41)).max() < 1e-5
    assert (flat.max(axis=2) == np.abs(flat).max(axis=2)).all()  # the largest entry is positive
    coordinates = flat[0, :39] @ factor.eigenvectors
    assert np.linalg.norm(coordinates, axis=1) == pytest.approx(1, abs=1e-5)
    assert np.abs(flat[0, 39:] @ factor.eigenvectors[:, :39]).max() < 1e-5
    identical = make_store(store.images([0]).repeat(2, 1, 1, 1))
    assert golddiff.Wiener(identical).posterior(x, 1.0).directions(2)[0].abs().max() == 0


def test_where_one_component_has_all_the_weight_directions_are_its_own():
    axes = np.eye(4)
    parts = [Gaussian(np.log(0.5), m, np.array(v), axes[:, :2])
             for m, v in ((np.zeros(4), [3.0, 2.0]), (np.full(4, 1e3), [1.0, 5.0]))]  # fmt: skip
    posterior = GaussiansPosterior(lambda: iter(parts), parts[1].mean[None] + 0.1, 1.0)
    values, vectors = posterior.directions(2)
    assert values[0] == pytest.approx([5 / 6, 1 / 2])
    assert np.allclose(vectors[0], axes[[1, 0]])


def test_directions_of_a_mixture_need_no_iterations(monkeypatch):
    """Regression: with nearly equal eigenvalues, the iterations took minutes or did not end."""
    monkeypatch.setattr("scipy.sparse.linalg.eigsh", None)
    generator, d = np.random.default_rng(0), 70
    bases = np.linalg.qr(generator.normal(size=(2, d, d)))[0]
    parts = [
        Gaussian(np.log(share), generator.normal(size=d) / 10, generator.uniform(1, 2, d), axes)
        for share, axes in zip((0.9, 0.1), bases, strict=True)
    ]
    posterior = GaussiansPosterior(lambda: iter(parts), generator.normal(size=(2, d)), 0.3)
    assert posterior._shares.max() < 1
    values, vectors = posterior.directions(3)
    for q in range(2):
        covariance = np.stack([posterior.times(np.eye(d)[[i, i]])[q] for i in range(d)])
        assert np.allclose(values[q], np.linalg.eigvalsh(covariance)[:-4:-1], rtol=1e-9)
        assert np.allclose(covariance @ vectors[q].T, values[q] * vectors[q].T, atol=1e-9)


def conditioned(parts, matrix, y, noise):
    """The components given y = A x0 + noise, from S_c = A C A^T + noise^2 I."""
    updated = []
    for weight, mean, covariance in parts:
        s = matrix @ covariance @ matrix.T + noise**2 * torch.eye(len(y), dtype=y.dtype)
        gain = covariance @ matrix.T @ torch.linalg.inv(s)
        likelihood = torch.distributions.MultivariateNormal(matrix @ mean, s).log_prob(y).exp()
        mean_given_y = mean + gain @ (y - matrix @ mean)
        covariance_given_y = covariance - gain @ matrix @ covariance
        updated.append((weight * likelihood.item(), mean_given_y, covariance_given_y))
    total = sum(weight for weight, *_ in updated)
    return [(weight / total, mean, (c + c.T) / 2) for weight, mean, c in updated]


@pytest.mark.parametrize("make", [wiener, mixture])
@pytest.mark.parametrize("label", [None, 1])
@pytest.mark.parametrize("sigma", [0.05, 2.0])
@pytest.mark.parametrize("noise", [1e-9, 0.1, 1.0])
def test_given_measurement_is_gaussian_conditioning(store, queries, make, label, sigma, noise):
    generator, x, d = torch.Generator().manual_seed(0), queries(store, sigma, b=3), make(store)
    matrix = torch.randn(5, store.d, generator=generator)
    shift = torch.randn(5, generator=generator)

    def operator(images):
        return images.reshape(len(images), -1) @ matrix.T + shift

    y = operator(store.images([1, 2, 3])) + noise * torch.randn(3, 5, generator=generator)
    measured = d.given_measurement(operator, y, noise)
    posterior, prior = measured.posterior(x, sigma, label), parts_of(d, label)
    centred = (y - shift).double()
    for q in range(3):
        parts = conditioned(prior, matrix.double(), centred[q], noise)
        mean, covariance, density = reference(x[q].reshape(1, -1), sigma, parts)
        assert (posterior.mean[q].reshape(-1) - mean[0]).abs().max() < 1e-5
        assert (posterior.variance[q].reshape(-1) - covariance[0].diagonal()).abs().max() < 1e-5
        assert float(posterior.log_density[q]) == pytest.approx(float(density[0]), rel=1e-5)
        values = torch.linalg.eigvalsh(covariance[0]).flip(0)[:2]
        assert (posterior.directions(2)[0][q] - values).abs().max() < 1e-5
    assert torch.allclose(measured(x, sigma, label), posterior.mean, atol=1e-6)
    assert repr(measured) == f"{d!r}.given_measurement(...)"
    # Conditioning on two parts of y in turn equals conditioning on y.
    half = d.given_measurement(lambda v: operator(v)[:, :2], y[:, :2], noise)
    both = half.given_measurement(lambda v: operator(v)[:, 2:], y[:, 2:], noise)
    assert torch.allclose(both(x, sigma, label), posterior.mean, atol=1e-5)


def test_gaussians_are_conditioned_once_for_all_batches_and_noises(store, queries, monkeypatch):
    """Regression: another number of images took as long as the first call, 15 s on CIFAR-10."""
    measured = wiener(store).given_measurement(
        lambda v: v[:, :, :2], store.images([1])[:, :, :2], 1
    )
    expected = measured(x := queries(store, 1.0, b=3), 1.0)
    monkeypatch.setattr(np.linalg, "svd", None)
    assert torch.allclose(measured(x[:2], 1.0), expected[:2], atol=1e-6)
    assert torch.allclose(measured(x, torch.tensor([1.0, 1.0, 2.0]))[:2], expected[:2], atol=1e-6)


def test_a_measurement_of_few_images_needs_no_matrix_of_all_values(
    make_store, smooth_images, monkeypatch
):
    """Regression: 600 images of 64 x 64 took minutes and 6 GB, as many as D images would."""
    store = make_store(smooth_images(20, (3, 32, 32)))
    y, noise = store.images([4])[..., ::2, ::2], 0.1
    f, x = store.factor(), store.images([0])
    monkeypatch.setattr("golddiff.system.memory.free_memory", lambda: 20e6)  # D^2 takes 75 MB
    given = golddiff.Wiener(store).given_measurement(lambda v: v[..., ::2, ::2], y, noise)
    mean = given(x, 1.0)
    # x and y together, as a regression on the coefficients of the principal components
    measured = [f.eigenvectors, f.eigenvectors.reshape(3, 32, 32, -1)[:, ::2, ::2].reshape(768, -1)]
    precision = np.diag(1 / f.eigenvalues) + sum(
        a.T @ a / s**2 for a, s in zip(measured, (1.0, noise), strict=True)
    )
    m = f.mean.reshape(3, 32, 32)
    residuals = [x.numpy().ravel() - f.mean, (y[0].numpy() - m[:, ::2, ::2]).ravel()]
    pull = sum(a.T @ r / s**2 for a, r, s in zip(measured, residuals, (1.0, noise), strict=True))
    expected = f.mean + f.eigenvectors @ np.linalg.solve(precision, pull)
    assert np.abs(mean.numpy().ravel() - expected).max() < 1e-6


def test_bad_measurements_are_refused(store):
    d, y = wiener(store), torch.zeros(2, 1, 4, 4)
    with pytest.raises(golddiff.ArgumentError, match="noise: got 0, but Gaussians"):
        d.given_measurement(lambda v: v, y, 0)
    with pytest.raises(golddiff.ArgumentError, match="operator: is not linear"):
        d.given_measurement(lambda v: v**2, y, 0.1)
    with pytest.raises(golddiff.ArgumentError, match="x: got 3 images, but 2 measurements"):
        d.given_measurement(lambda v: v, y, 0.1)(torch.zeros(3, 1, 4, 4), 1.0)
    with pytest.raises(golddiff.ArgumentError, match="y: got 3 measurements, but 2 were given bef"):
        d.given_measurement(lambda v: v, y, 0.1).given_measurement(lambda v: v, y[[0, 1, 1]], 0.1)


@pytest.mark.parametrize("make", [wiener, mixture])
def test_the_sigma_gradient_equals_finite_differences(store, queries, make):
    d, x = make(store), queries(store, 0.7, b=2)
    sigma = torch.tensor([0.6, 0.9], dtype=torch.float64, requires_grad=True)
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    (d(x, sigma) * u).sum().backward()
    flat, v = x.reshape(2, -1).numpy(), u.reshape(2, -1).double().numpy()
    for q in range(2):

        def mean(level, q=q):
            return (d.exact(flat[q : q + 1], level, None).mean() * v[q]).sum()

        level = float(sigma.detach()[q])
        slope = (mean(level + 1e-5) - mean(level - 1e-5)) / 2e-5
        assert float(sigma.grad[q]) == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_draws_have_the_posteriors_moments():
    generator = np.random.default_rng(0)
    axes = np.linalg.qr(generator.normal(size=(5, 5)))[0]
    parts = [
        Gaussian(np.log(0.3), generator.normal(size=5), np.array([2.0, 1.0, 0.2]), axes[:, :3]),
        Gaussian(np.log(0.7), generator.normal(size=5), np.array([0.5, 0.1]), axes[:, :2]),
    ]
    posterior = GaussiansPosterior(lambda: iter(parts), generator.normal(size=(2, 5)), 0.8)
    drawn = posterior.draw(20000, 3, [0, 1]).astype(np.float64)
    assert np.abs(drawn.mean(axis=0) - posterior.mean()).max() < 0.04
    assert np.abs(drawn.var(axis=0) - posterior.variance()).max() < 0.04
    flipped = [Gaussian(p.log_weight, p.mean, p.values, -p.vectors) for p in parts]
    same = GaussiansPosterior(lambda: iter(flipped), posterior.x, 0.8)
    assert np.allclose(same.draw(5, 3, [0, 1]), drawn[:5], atol=1e-6)
