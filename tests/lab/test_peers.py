import os
import sys

import pytest
import torch

import golddiff
from golddiff.estimators.registry import MethodSettings
from golddiff.noise import alpha_of_sigma, ddim_sigmas, precision
from golddiff.system.errors import ArgumentError
from golddiff_lab.peers import PEERS, recognise
from golddiff_lab.peers.checkout import bundle, imported, vp_timestep
from golddiff_lab.sides import SideSpec
from tests.lab.checkouts import FILES, write_checkout

LEVELS = [ddim_sigmas(10)[i] for i in (0, 4, 9)]


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(40, (3, 8, 8)))


def make_step(name, path, store, **settings):
    spec = SideSpec(name, store.path, path, settings=MethodSettings(**settings))
    return PEERS[name].make(spec, store)


def same_maths(name, path, store, threshold=0.02):
    """A peer's step over all images, and our denoiser of the same mean."""
    sizes = {"k_min": store.n, "k_max": store.n} if name == "release" else {}
    weighting = {"release": "ss", "studio": "wss"}[name]
    ours = golddiff.PCA(store, threshold, weighting, batch_size=512)
    return make_step(name, path, store, mask_threshold=threshold, **sizes), ours


def from_environment(name):
    """The path of a real checkout, from $GOLDDIFF_PEER_RELEASE and so on."""
    path = os.environ.get("GOLDDIFF_PEER_" + name.upper().replace("-", "_"))
    if path is None:
        pytest.skip(f"needs a checkout of {PEERS[name].title}")
    return recognise(path)[1]


@pytest.mark.parametrize("name", FILES)
def test_a_checkout_is_recognised_by_its_content(name, tmp_path):
    folder = write_checkout(name, tmp_path / "any name")
    assert recognise(str(folder)) == (name, folder.resolve())


def test_faiss_needs_no_checkout():
    assert recognise("faiss") == ("faiss", None)


@pytest.mark.parametrize("content", [None, "empty", "other"])
def test_a_folder_without_a_peers_code_is_an_error(content, tmp_path):
    folder = tmp_path / "x"
    if content is not None:
        folder.mkdir()
    if content == "other":
        (folder / "methods").mkdir()
        (folder / "methods" / "ours.py").write_text("class Another: pass")
    with pytest.raises(ArgumentError, match=r"peer: got .*methods/ours.py.*'faiss'"):
        recognise(str(folder))


def test_importing_a_checkout_leaves_no_trace(tmp_path):
    folder = write_checkout("kamb-ganguli", tmp_path / "x")
    path, modules = list(sys.path), set(sys.modules)
    stubs = {"torchvision": ["datasets", "models", "transforms"], "torchvision.transforms": []}
    with imported(folder, "src.utils.idealscore", stubs) as module:
        assert module.__file__.startswith(str(folder))
    assert sys.path == path
    leftover = {n for n in set(sys.modules) - modules if n.startswith(("src", "torchvision"))}
    assert not leftover


def test_two_checkouts_with_the_same_module_are_not_mixed_up(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "common_name").mkdir(parents=True)
        (tmp_path / name / "common_name" / "part.py").write_text(f"NAME = {name!r}")
        with imported(tmp_path / name, "common_name.part", {}) as module:
            assert name == module.NAME


def test_a_checkout_that_does_not_import_is_an_error(tmp_path):
    (tmp_path / "broken.py").write_text("import no_such_module")
    with (
        pytest.raises(ArgumentError, match="no_such_module"),
        imported(tmp_path, "broken", {}),
    ):
        pass


def test_a_noise_level_between_two_timesteps_is_an_error():
    assert [vp_timestep("x", s) for s in ddim_sigmas(10)] == list(range(900, -1, -100))
    with pytest.raises(ArgumentError, match=r"levels: got 3\.4, but x runs"):
        vp_timestep("x", 3.4)


@pytest.mark.parametrize("name", ["release", "studio"])
def test_a_peer_agrees_with_us_on_the_same_maths(name, store, tmp_path, queries):
    theirs, ours = same_maths(name, write_checkout(name, tmp_path / name), store)
    for sigma in LEVELS:
        x = queries(store, sigma)
        assert theirs(x, sigma).allclose(ours(x, sigma), atol=2e-4)


@pytest.mark.parametrize("name", ["release", "studio"])
def test_a_peer_uses_our_mask_threshold(name, store, tmp_path, queries):
    path = write_checkout(name, tmp_path / name)
    x = queries(store, LEVELS[1])
    (narrow, _), (wide, ours) = (same_maths(name, path, store, t) for t in (0.01, 0.3))
    assert not narrow(x, LEVELS[1]).allclose(wide(x, LEVELS[1]), atol=1e-3)
    assert wide(x, LEVELS[1]).allclose(ours(x, LEVELS[1]), atol=2e-4)


def test_the_studio_is_pca_with_wss_weighting(store, tmp_path, monkeypatch, queries):
    monkeypatch.setattr("golddiff_lab.peers.studio.BATCH", 4)
    step = make_step("studio", write_checkout("studio", tmp_path / "x"), store)
    x = queries(store, LEVELS[1])
    wss = golddiff.PCA(store, weighting="wss", batch_size=4)
    assert step(x, LEVELS[1]).allclose(wss(x, LEVELS[1]), atol=2e-4)


def test_the_score_of_kambs_code_is_converted_to_a_denoiser(store, tmp_path, queries):
    path = write_checkout("kamb-ganguli", tmp_path / "x")
    step = make_step("kamb-ganguli", path, store, patch_size=5)
    for sigma in (0.3, 2.0):
        x = queries(store, sigma)
        ours = golddiff.Kamb(store, 5, "none")(x, sigma)  # what the miniature computes
        assert step(x, sigma).allclose(ours, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "patch_size: got None"),
        ({"patch_size": 4}, "got size 4"),
        ({"patch_size": 1}, "3 to 7"),
        ({"patch_size": 9}, "3 to 7"),
        ({"patch_size": 3, "boundary": "none"}, "boundary: got 'none'"),
    ],
)
def test_settings_that_kambs_code_lacks_are_refused(settings, message, store, tmp_path):
    path = write_checkout("kamb-ganguli", tmp_path / "x")
    with pytest.raises(ArgumentError, match=message):
        make_step("kamb-ganguli", path, store, **settings)


def test_the_release_refuses_variant_text_and_all_peers_wide_images(
    store, make_store, smooth_images, tmp_path
):
    path = write_checkout("release", tmp_path / "x")
    with pytest.raises(ArgumentError, match="variant"):
        make_step("release", path, store, variant="text")
    wide = make_store(smooth_images(10, (1, 4, 8)))
    for name in FILES:
        with pytest.raises(ArgumentError, match=r"store: got shape \(1, 4, 8\)"):
            make_step(name, path, wide, patch_size=3)


def test_faiss_averages_the_k_nearest(store, queries):
    pytest.importorskip("faiss")
    step = make_step("faiss", None, store, k_min=4, k_max=12)
    schedule = golddiff.PaperSchedule(k_min=4, k_max=12, variant="released")
    for sigma in LEVELS:
        x = queries(store, sigma)
        k = schedule.budgets(sigma, store.n)[1]
        distances = (x[:, None] - store.images()).double().square().sum((2, 3, 4))
        squares, rows = distances.topk(k, largest=False)
        weights = torch.softmax(-squares * precision(sigma), 1)
        mean = torch.einsum("bk,bkcij->bcij", weights, store.images().double()[rows])
        assert step(x, sigma).double().allclose(mean, atol=1e-3)


@pytest.mark.parametrize("name", ["release", "studio"])
def test_the_real_release_and_studio_agree(name, store, queries):
    theirs, ours = same_maths(name, from_environment(name), store)
    for sigma in LEVELS:
        x = queries(store, sigma)
        assert theirs(x, sigma).allclose(ours(x, sigma), atol=2e-3)


def test_the_pspc_miniature_agrees_and_refuses_bad_patch_sizes(store, tmp_path, queries):
    path = write_checkout("pspc", tmp_path / "x")
    for size in (3, 20):
        x, ours = queries(store, 1.0), golddiff.PSPCSquare(store, size)
        step = make_step("pspc", path, store, patch_size=size)
        assert step(x, 1.0).allclose(ours(x, 1.0), atol=1e-5)
    with pytest.raises(ArgumentError, match="patch_sizes: got 'x'"):
        make_step("pspc", path, store, patch_size="x")


def test_the_real_code_of_pspc_agrees(make_store, smooth_images, queries):
    path = from_environment("pspc")
    store = make_store(smooth_images(200, (3, 16, 16)))
    step, ours = make_step("pspc", path, store), golddiff.PSPCSquare(store)
    for sigma in (0.05, 1.0, 4.0, 60.0):
        x = queries(store, sigma)
        assert step(x, sigma).allclose(ours(x, sigma), atol=1e-4)


@pytest.mark.parametrize("boundary", ["zeros", "circular"])
def test_the_real_code_of_kamb_agrees(boundary, make_store, smooth_images, queries):
    path = from_environment("kamb-ganguli")
    store = make_store(smooth_images(20, (3, 32, 32)))  # their code fixes the side at 32
    step = make_step("kamb-ganguli", path, store, patch_size=5, boundary=boundary)
    x = queries(store, 1.0, b=1)
    ours = golddiff.Kamb(store, 5, boundary)(x, 1.0)
    assert step(x, 1.0).allclose(ours, atol=1e-3)


def test_scfdm_and_nearest_image_agree_with_the_real_studio(store, queries, tmp_path, monkeypatch):
    """With the same draws, and with their search set to keep all images, as in the equation."""
    path, scfdm = from_environment("studio") / "src", golddiff.SCFDM(store, 0.3, copies=4)
    dataset = bundle(store, [store.images()])
    dataset.split = "train"
    settings = {"num_noise": 4, "smoothing_std": 0.3, "num_neighbors": store.n}
    stubs = {"local_diffusion.data": ["DatasetBundle"]}
    with imported(path, "local_diffusion.models.scfdm", stubs):
        models = sys.modules["local_diffusion.models"].MODEL_REGISTRY
        params = {**settings, "index_path": str(tmp_path)}
        smoothed = models["scfdm"](dataset, "cpu", 10, params=params).train(dataset)
        nearest = models["nearest_dataset"](dataset, "cpu", 10).train(dataset)
    for sigma in LEVELS:
        x, draws = queries(store, sigma), torch.from_numpy(scfdm.noise(sigma))
        draws = draws.reshape(4, 1, *store.shape).expand(-1, len(x), -1, -1, -1)
        monkeypatch.setattr(torch, "randn", lambda *_, draws=draws, **__: draws)
        arguments = x * alpha_of_sigma(sigma) ** 0.5, torch.tensor(vp_timestep("studio", sigma))
        assert smoothed.denoise(*arguments).allclose(scfdm(x, sigma), atol=1e-4)
        monkeypatch.undo()
        assert torch.equal(nearest.denoise(*arguments), golddiff.NearestImage(store)(x, sigma))
