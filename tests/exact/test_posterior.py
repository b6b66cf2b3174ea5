"""The exact posterior against float64 references written from the equations."""

import numpy as np
import pytest
import torch
from hypothesis import given as examples
from hypothesis import strategies as st
from torch.autograd import forward_ad

import golddiff
from golddiff_lab.reference import pca_mask
from golddiff_lab.reference_kamb import compared, framed_by
from tests.conftest import float64_images

SIGMAS = (0.02, 0.1, 0.3, 0.7, 1.5, 3.0, 6.0, 12.0, 30.0, 61.0)


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(70, (2, 5, 5)), torch.arange(70) % 3)


def log_terms(store, x, sigma, prior):
    """(B, N) log of p_i N(x; x_i, sigma^2 I), written out."""
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
    off = images - mean[:, None]
    return mean, np.einsum("bn,bnd,bne->bde", weights, off, off), density


def flat(images):
    return images.double().numpy().reshape(len(images), -1)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("labels", [None, [0, 2, 1, 1]])
def test_optimal_is_bayes_rule(store, queries, sigma, labels):
    x = queries(store, sigma)
    prior = 0.0 if labels is None else class_prior(store, labels)
    mean, covariance, density = optimal(store, x, sigma, prior)
    found = golddiff.Optimal(store).posterior(x, sigma, labels)
    assert np.abs(flat(found.mean) - mean).max() < 1e-5
    assert np.abs(flat(found.variance) - np.einsum("bdd->bd", covariance)).max() < 1e-5
    assert np.allclose(found.log_density.numpy(), density, rtol=1e-6)
    values, vectors = found.directions(3)
    expected = np.linalg.eigvalsh(covariance)[:, :-4:-1]
    assert np.abs(values.numpy() - expected).max() < 1e-5
    along = vectors.double().reshape(len(x), 3, -1).numpy()
    assert np.abs(np.einsum("bkd,bde,bke->bk", along, covariance, along) - expected).max() < 1e-5
    assert np.allclose(np.linalg.norm(along, axis=2), 1, atol=1e-5)


def test_one_image_s_posterior_varies_in_no_direction(make_store):
    store = make_store(torch.randn(9, 3, 8, 8, generator=torch.Generator().manual_seed(0)).sign())
    found = golddiff.Optimal(store).posterior(store.images([4]) + 0.01, 0.1)
    values, vectors = found.directions(2)
    assert values.abs().max() == 0
    assert torch.allclose(vectors.flatten(2).norm(dim=2), torch.ones(1, 2))


def test_the_score_is_the_gradient_of_the_log_density(store, queries):
    sigma = torch.tensor([0.3, 0.7, 2.0, 9.0])
    x, d, step = queries(store, 1.0), golddiff.Optimal(store), 1e-3
    images, x64 = torch.from_numpy(float64_images(store)), x.double().reshape(4, -1)
    x64.requires_grad_()
    squares = (x64[:, None] - images).square().sum(dim=2)
    logs = torch.logsumexp(-squares / (2 * sigma.double()[:, None] ** 2), dim=1)
    (gradient,) = torch.autograd.grad(logs.sum(), x64)
    assert np.allclose(flat(d.score(x, sigma)), gradient.numpy(), atol=1e-4, rtol=1e-5)
    along = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    moved = [d.log_density(x + s * along, sigma) for s in (step, -step)]
    slope = (d.score(x, sigma).double() * along).reshape(4, -1).sum(dim=1)
    assert torch.allclose((moved[0] - moved[1]) / (2 * step), slope, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("method", [golddiff.Optimal, golddiff.Wiener])
def test_the_score_has_its_own_slope_in_sigma(store, queries, method):
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


def test_functional_derivatives_are_those_of_a_graph(store, queries):
    d, x = golddiff.Optimal(store), queries(store, 1.0)
    level = torch.tensor([0.7, 1.0, 2.0, 5.0])
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    mean, vjp = torch.func.vjp(d, x, level)
    asked = x.clone().requires_grad_(), level.clone().requires_grad_()
    made = d(*asked)
    (made * u).sum().backward()
    assert torch.equal(mean, made)
    assert all(torch.equal(a, b.grad) for a, b in zip(vjp(u), asked, strict=True))
    (slope,) = torch.autograd.grad(d(*asked).square().sum(), asked[0], create_graph=True)
    with pytest.raises(golddiff.ArgumentError, match="second derivatives"):
        slope.sum().backward()


def test_forward_derivatives_are_refused_not_zero(store, queries):
    d, x = golddiff.Optimal(store), queries(store, 1.0)
    with forward_ad.dual_level(), pytest.raises(golddiff.ArgumentError, match=r"^x: .*jvp"):
        d(forward_ad.make_dual(x, x), 1.0)
    level = torch.tensor(1.0)
    with pytest.raises(golddiff.ArgumentError, match=r"^sigma: .*jvp"):
        torch.func.jvp(lambda sigma: d(x, sigma), (level,), (level,))
    with pytest.raises(golddiff.ArgumentError, match=r"^x: .*vmap"):
        torch.func.vmap(lambda one: d(one[None], 1.0))(x)


def kamb_terms(x, sigma, images, patch, boundary):
    """Of every position its logits and values, written out: a dict of arrays."""
    _, height, width = x.shape
    query = framed_by(patch // 2, x, boundary)
    framed = [framed_by(patch // 2, image, boundary) for image in images]
    for row in range(height):
        for column in range(width):
            mine = query[:, row : row + patch, column : column + patch]
            logits, values = [], []
            for i, frame in enumerate(framed):
                for r in compared(row, height, patch, boundary):
                    for c in compared(column, width, patch, boundary):
                        theirs = frame[:, r : r + patch, c : c + patch]
                        logits.append((i, -np.sum((mine - theirs) ** 2) / (2 * sigma**2)))
                        values.append(images[i][:, r, c])
            yield row, column, logits, np.array(values)


def kamb(x, sigma, images, patch, boundary, prior):
    """Mean and variance of one query (C, H, W)."""
    mean, variance = np.empty_like(x), np.empty_like(x)
    for row, column, logits, values in kamb_terms(x, sigma, images, patch, boundary):
        logs = np.array([prior[i] + logit for i, logit in logits])
        weights = np.exp(logs - np.logaddexp.reduce(logs))
        mean[:, row, column] = weights @ values
        variance[:, row, column] = weights @ (values - weights @ values) ** 2
    return mean, variance


def pca(x, sigma, images, mask, prior):
    logs = -((x - images) ** 2) @ mask / (2 * sigma**2) + prior[:, None]
    weights = np.exp(logs - np.logaddexp.reduce(logs, axis=0))
    mean = (weights * images).sum(axis=0)
    return mean, (weights * (images - mean) ** 2).sum(axis=0)


def slope_of(mean_of, x, u, places, step=1e-5):
    """Some of the gradient in x of mean . u, by differences of a float64 reference."""
    out = []
    for place in places:
        moved = [x.copy(), x.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        out.append(((mean_of(moved[0]) - mean_of(moved[1])) * u).sum() / (2 * step))
    return np.array(out)


@pytest.mark.parametrize("sigma", [0.1, 0.7, 3.0, 30.0])
def test_pca_weighs_every_output_by_itself(store, queries, sigma):
    prior = np.random.default_rng(0).normal(size=store.n)
    prior[5] = -np.inf
    d = golddiff.PCA(store, 0.3).given(prior)
    images, x = float64_images(store), queries(store, sigma, b=2)
    mask = pca_mask(sigma, images, 0.3)
    found = d.posterior(x, sigma)
    x.requires_grad_()
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    (d(x, sigma) * u).sum().backward()
    for q in range(2):
        query = flat(x.detach())[q]
        mean, variance = pca(query, sigma, images, mask, prior)
        assert np.abs(flat(found.mean)[q] - mean).max() < 1e-5
        assert np.abs(flat(found.variance)[q] - variance).max() < 1e-5
        every = list(np.ndindex(query.shape))
        slope = slope_of(lambda v: pca(v, sigma, images, mask, prior)[0], query, flat(u)[q], every)
        assert np.abs(flat(x.grad)[q] - slope).max() < 1e-4 * max(1, np.abs(slope).max())


@pytest.mark.parametrize("boundary", ["none", "circular", "zeros"])
@pytest.mark.parametrize("sigma", [0.3, 3.0])
def test_kamb_weighs_every_pixel_by_itself(make_store, smooth_images, queries, sigma, boundary):
    store = make_store(smooth_images(9, (2, 5, 5), seed=4))
    prior = np.random.default_rng(0).normal(size=store.n)
    d = golddiff.Kamb(store, 3, boundary).given(prior)
    images = float64_images(store).reshape(-1, *store.shape)
    x = queries(store, sigma, b=1)
    found = d.posterior(x, sigma)
    query = x[0].double().numpy()
    mean, variance = kamb(query, sigma, images, 3, boundary, prior)
    assert np.abs(found.mean[0].numpy() - mean).max() < 1e-5
    assert np.abs(found.variance[0].numpy() - variance).max() < 1e-5
    x.requires_grad_()
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    (d(x, sigma) * u).sum().backward()
    places = [(0, 0, 0), (1, 0, 3), (0, 1, 1), (1, 2, 2), (0, 4, 2), (1, 4, 4)]
    slope = slope_of(
        lambda v: kamb(v, sigma, images, 3, boundary, prior)[0], query, u[0].double().numpy(),
        places,
    )  # fmt: skip
    made = np.array([x.grad[0].numpy()[place] for place in places])
    assert np.abs(made - slope).max() < 1e-4 * max(1, np.abs(slope).max())


@pytest.mark.parametrize("share", ["pixel", "2x2", "seamless"])
def test_a_shared_softmax_has_the_gradient_of_its_differences(store, queries, share):
    d, x = golddiff.PCA(store, 0.3, share=share), queries(store, 0.8, b=2).double()
    x.requires_grad_()
    generator = torch.Generator().manual_seed(3)
    u, v = (torch.randn(x.shape, generator=generator) for _ in range(2))
    (d(x, 0.8) * u).sum().backward()
    with torch.no_grad():
        moved = [(d.posterior(x + s * v, 0.8).mean.double() * u).sum() for s in (1e-2, -1e-2)]
    assert float((x.grad * v).sum()) == pytest.approx(float(moved[0] - moved[1]) / 2e-2, rel=1e-2)


@pytest.mark.parametrize(
    "method", [golddiff.Optimal, golddiff.PCA, golddiff.Wiener, golddiff.GaussianMixture]
)
def test_a_denoiser_without_gradient_asked_has_no_graph(store, queries, method):
    d, x = method(store), queries(store, 1.0).requires_grad_()
    assert d(x, 1.0).requires_grad
    assert not d(x.detach(), 1.0).requires_grad
    with torch.no_grad():
        assert not d(x, 1.0).requires_grad
    assert torch.allclose(d(x, 1.0), d(x.detach(), 1.0), atol=1e-5)


def test_a_batch_of_mixed_levels_and_classes_is_that_of_each(store, queries):
    d, x = golddiff.Optimal(store), queries(store, 1.0)
    sigma, labels = torch.tensor([0.4, 3.0, 0.4, 9.0]), [0, 1, 2, 1]
    both = d.posterior(x, sigma, labels)
    for i in range(4):
        one = d.posterior(x[i : i + 1], float(sigma[i]), labels[i])
        assert torch.allclose(both.variance[i], one.variance[0], atol=1e-6)
        assert both.log_density[i] == pytest.approx(float(one.log_density[0]), rel=1e-9)


@pytest.mark.parametrize("sigma", [0.4, 4.0])
def test_draws_are_as_frequent_as_images_are_likely(store, queries, sigma):
    x = queries(store, sigma, b=2)
    logs = log_terms(store, x, sigma, 0.0)
    weights = np.exp(logs - np.logaddexp.reduce(logs, axis=1)[:, None])
    drawn = golddiff.Optimal(store).posterior(x, sigma).draw(4000, seed=5)
    assert drawn.shape == (4000, 2, *store.shape)
    images = float64_images(store)
    for q in range(2):
        own = flat(drawn[:, q])
        rows = ((own[:, None] - images[None]) ** 2).sum(axis=2).argmin(axis=1)
        assert np.abs(own - images[rows]).max() < 1e-6
        frequent = np.bincount(rows, minlength=store.n) / 4000
        assert np.abs(frequent - weights[q]).max() < 4 * np.sqrt(0.25 / 4000)


def test_a_draw_hangs_on_its_seed_and_place_alone(store, queries):
    posterior = golddiff.Optimal(store).posterior(queries(store, 3.0), 3.0)
    few, many = posterior.draw(3, seed=1), posterior.draw(7, seed=1)
    assert torch.equal(many[:3], few)
    assert not torch.equal(posterior.draw(3, seed=2), few)
    alone = golddiff.Optimal(store).posterior(queries(store, 3.0)[:1], 3.0)
    assert torch.equal(alone.draw(3, seed=1)[:, 0], few[:, 0])


@examples(st.floats(0.05, 50), st.integers(0, 2**32))
def test_variance_is_the_diagonal_of_the_jacobian(store, sigma, seed):
    generator = torch.Generator().manual_seed(seed)
    x = store.images([3]) + sigma * torch.randn(1, *store.shape, generator=generator)
    d, place = golddiff.Optimal(store), seed % store.d
    x.requires_grad_()
    d(x, sigma).reshape(-1)[place].backward()
    variance = d.posterior(x.detach(), sigma).variance.reshape(-1)[place]
    assert float(x.grad.reshape(-1)[place]) * sigma**2 == pytest.approx(
        float(variance), abs=1e-5, rel=1e-4
    )


def test_over_a_golden_support_the_support_is_fixed(make_store, smooth_images, queries):
    store = make_store(smooth_images(1500, (3, 16, 16)))
    x = queries(store, 2.0, b=2)
    for schedule in (golddiff.PaperSchedule(), golddiff.AdaptiveSchedule(0.05)):
        for base in (golddiff.Optimal(store), golddiff.PCA(store, 0.3)):
            d = golddiff.GoldDiff(base, schedule)
            found = d.posterior(x, 2.0)
            assert torch.allclose(found.mean, d(x, 2.0), atol=2e-5)
            assert (found.variance >= 0).all()
            asked = x.clone().requires_grad_()
            d(asked, 2.0).sum().backward()
            assert torch.isfinite(asked.grad).all()
            assert asked.grad.abs().max() > 0


def test_a_gradient_takes_the_logits_of_the_first_pass_or_finds_them_anew(
    store, queries, monkeypatch
):
    """The memory limit decides which, and not the result."""
    x, found = queries(store, 0.5, 3), []

    def mean(share):
        monkeypatch.setattr("golddiff.store.exact.CACHE_SHARE", share)
        found.append(x.clone().requires_grad_())
        return golddiff.Optimal(store)(found[-1], 0.5).square().sum()

    mean(0).backward()
    kept = mean(1)
    monkeypatch.delattr("golddiff.estimators.optimal.weights_of")
    kept.backward()
    assert torch.allclose(found[0].grad, found[1].grad, rtol=1e-6, atol=1e-9)


def test_a_first_pass_that_keeps_its_logits_takes_no_more_memory_than_one_by_itself(store, queries):
    x = queries(store, 0.5, 1)
    fixed, each = golddiff.Optimal(store).working_bytes(store.n)
    small = golddiff.Optimal(store, memory_limit=max(fixed + each, 16 * 8 * store.n))
    assert torch.equal(small.posterior(x, 0.5).mean, golddiff.Optimal(store).posterior(x, 0.5).mean)
