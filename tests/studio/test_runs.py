import json
import shutil
import threading
from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image

from golddiff.attribution import pixel_sources
from golddiff.estimators.registry import SHOWN, create
from golddiff.sampling import sample
from golddiff.store.images import ImageStore
from golddiff.studio.downloads import write_downloads
from golddiff.studio.explain import curves, draw_plots, sources_at, sources_html
from golddiff.studio.grid import corner, draw_grid, factor_of, selection_at
from golddiff.studio.library import Library
from golddiff.studio.run import Selection, Settings, prepare
from golddiff.system.errors import ArgumentError, StoreError


@pytest.fixture(scope="module")
def library(make_store, smooth_images):
    grey = make_store(smooth_images(60, (1, 8, 6)), labels=[i % 3 for i in range(60)])
    return Library({"grey": lambda: grey})


def finished(library, methods=tuple(SHOWN), **settings):
    run = prepare(library.get("grey"), Settings("grey", methods, **settings), None)
    for _ in run.advance():
        pass
    return run


def test_all_methods_share_the_noise_and_match_the_sampler(library):
    run = finished(library, n=2, seed=4, steps=5, label=1)
    store = run.opened.store
    for method in SHOWN:
        expected = sample(create(method, store, seed=4), 2, 5, seed=4, labels=1)
        assert torch.equal(run.start, expected.x_init)
        assert torch.equal(run.states[method][-1].x0, expected.images)


def test_the_novelty_setting_reaches_the_recommended_method(library):
    outputs = {}
    for novelty in (0.0, 0.7, 1.0):
        run = finished(library, ("recommended",), novelty=novelty, seed=2, steps=3)
        expected = create("recommended", run.opened.store, novelty=novelty, seed=2)
        outputs[novelty] = run.states["recommended"][-1].x0
        assert torch.equal(outputs[novelty], sample(expected, 1, 3, seed=2).images)
    assert not torch.equal(outputs[0.0], outputs[1.0])


def test_every_pixel_can_be_selected_in_the_picture(library):
    run = finished(library, ("optimal", "wiener"), n=2, steps=2)
    width, height = draw_grid(run, 1, False, None).size
    selections = [selection_at(run, x, y) for y in range(0, height, 9) for x in range(0, width, 9)]
    assert {(s.method, s.image, s.y, s.x) for s in selections if s is not None} == {
        (m, i, y, x) for m in ("optimal", "wiener") for i in (0, 1) for y in range(8)
        for x in range(6)
    }  # fmt: skip
    assert selection_at(run, 0, 0) is None
    assert selection_at(run, width - 1, height - 1) is None


def test_a_cell_shows_the_value_of_its_pixel(library):
    run = finished(library, ("wiener",), steps=3)
    picture, factor = draw_grid(run, 2, False, None), factor_of(run)
    left, top = corner(run, 1, 0)
    value = float(run.states["wiener"][2].x0[0, 0, 5, 4].clamp(-1, 1))
    position = (left + 4 * factor + 2, top + 5 * factor + 2)
    assert selection_at(run, *position) == Selection("wiener", 0, 5, 4)
    assert picture.getpixel(position)[0] == pytest.approx((value + 1) * 127.5, abs=1)


def test_sources_belong_to_the_displayed_step(library):
    run = finished(library, ("pca",), steps=4)
    chosen = Selection("pca", 0, 2, 3)
    for step in range(4):
        shown = sources_at(run, chosen, step)
        state = run.states["pca"][step]
        expected = pixel_sources(run.denoisers["pca"], state.x[0], state.sigma, 2, 3, top=12)
        assert np.array_equal(shown.sources, expected.sources)
        assert shown.value[0] == pytest.approx(float(state.x0[0, 0, 2, 3]), abs=1e-4)
        assert "effectively" in sources_html(run, chosen, step, shown)


def test_the_value_shown_is_the_pixels_also_where_seams_are_joined(make_store):
    coarse = torch.rand(60, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    blocks = make_store((coarse.repeat_interleave(4, 2).repeat_interleave(4, 3) * 255).byte())
    run = finished(Library({"grey": lambda: blocks}), ("recommended",), novelty=1, steps=10)
    chosen, differs = Selection("recommended", 0, 2, 3), False
    for step in range(10):
        sources, state = sources_at(run, chosen, step), run.states["recommended"][step]
        shown, summed = (
            ", ".join(f"{value:+.2f}" for value in values.tolist())
            for values in (state.x0[0, :, 2, 3], sources.value)
        )
        assert f"value <b>{shown}</b>" in sources_html(run, chosen, step, sources)
        differs |= shown != summed
    assert differs


def test_class_names_are_escaped_in_html(library, make_store, smooth_images):
    evil = make_store(smooth_images(6, (1, 4, 4)), labels=[0] * 6)
    evil.class_names = ["<script>alert(1)</script>"]
    run = prepare(Library({"s": lambda: evil}).get("s"), Settings("s", ("optimal",)), None)
    next(run.advance())
    chosen = Selection("optimal", 0, 0, 0)
    assert "<script>" not in sources_html(run, chosen, 0, sources_at(run, chosen, 0))


def test_wiener_has_no_sources_and_the_other_methods_have_curves(library):
    run = finished(library, steps=3)
    with pytest.raises(ArgumentError, match="not supported by Wiener"):
        sources_at(run, Selection("wiener", 0, 0, 0), 0)
    points_of = curves(run, Selection("pca", 0, 4, 3), 60)
    assert set(points_of) == {name for name in SHOWN if SHOWN[name].has_sources}
    assert all(len(points) == 3 for points in points_of.values())
    assert all(1 - 1e-6 <= number <= 60 for p in points_of.values() for _, number in p)
    assert curves(run, Selection("pca", 0, 4, 3), 60) is points_of


def test_curves_of_a_stopped_run_cover_the_steps_of_all_methods(library):
    run = prepare(library.get("grey"), Settings("grey", ("optimal", "pca"), steps=4), None)
    assert list(islice(run.advance(), 3)) == ["optimal", "pca", "optimal"]
    points_of = curves(run, Selection("optimal", 0, 4, 3), 60)
    assert {name: [s for s, _ in points] for name, points in points_of.items()} == {
        name: [run.states["pca"][0].sigma] for name in ("optimal", "pca")
    }


def test_downloads_hold_a_picture_and_the_settings_of_the_run(library, tmp_path):
    run = finished(library, ("recommended", "golddiff-pca"), steps=3, seed=8, label=2)
    chosen = Selection("golddiff-pca", 0, 1, 1)
    sources, points_of = sources_at(run, chosen, 1), curves(run, chosen, 60)
    picture, figures = write_downloads(run, 1, chosen, sources, points_of, tmp_path)
    with Image.open(picture) as image:
        assert image.format == "PNG"
    contents = json.loads(figures.read_text())
    assert (contents["seed"], contents["label"], contents["steps"]) == (8, 2, 3)
    for method, variant in (("recommended", "text"), ("golddiff-pca", "released")):
        subset = contents["golden_subsets"][method]
        expected = [create(method, run.opened.store).schedule.budgets(s, 20) for s in run.sigmas]
        assert list(zip(subset["m"], subset["k"], strict=True)) == expected
        assert subset["variant"] == variant
    assert contents["pixel"]["sources"][0]["image"] == int(sources.sources[0])
    titles = [axes.get_title() for axes in draw_plots(run, 1, chosen, sources, points_of).axes]
    assert f"effectively {sources.effective:,.1f} images" in titles[0]
    assert titles[1:] == ["effective number of images", "golden subset of GoldDiff (PCA)"]
    k = draw_plots(run, 1, chosen, sources, points_of).axes[2].lines[2].get_ydata()
    assert list(k) == contents["golden_subsets"]["golddiff-pca"]["k"]


def test_a_method_without_sources_or_subset_has_no_plots(library):
    run = finished(library, ("wiener",), steps=2)
    chosen = Selection("wiener", 0, 1, 1)
    assert draw_plots(run, 1, chosen, None, curves(run, chosen)) is None


def test_a_run_that_exceeds_memory_is_refused(make_store):
    wide = make_store(torch.zeros(2, 3, 512, 512, dtype=torch.uint8))
    opened = Library({"wide": lambda: wide}).get("wide")
    with pytest.raises(ArgumentError, match=r"steps: got 100, expected at most \d+"):
        prepare(opened, Settings("wide", ("optimal",), steps=100, n=4), None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": ()}, "methods: got none"),
        ({"methods": ("magic",)}, "methods: got 'magic'"),
        ({"steps": 101}, "expected at most 100"),
        ({"n": 5}, "expected at most"),
        ({"seed": -1}, "seed: got -1"),
        ({"label": 9}, "labels: got 9"),
        ({"methods": ("recommended",), "novelty": 1.5}, "novelty: got 1.5"),
    ],
)
def test_invalid_settings_are_refused(library, settings, message):
    with pytest.raises(ArgumentError, match=message):
        prepare(library.get("grey"), Settings(**{"store": "grey", "methods": ("pca",), **settings}),
                None)  # fmt: skip


def test_concurrent_runs_do_not_affect_each_other(library):
    sequential = [finished(library, ("pca", "golddiff-kamb"), seed=s).states for s in (1, 2)]
    concurrent = {}

    def run_in_thread(seed):
        concurrent[seed] = finished(library, ("pca", "golddiff-kamb"), seed=seed).states

    threads = [threading.Thread(target=run_in_thread, args=(s,)) for s in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, expected in zip((1, 2), sequential, strict=True):
        for method in expected:
            assert torch.equal(concurrent[seed][method][-1].x0, expected[method][-1].x0)


def test_a_deleted_store_is_reported_and_reopens_once_rebuilt(tmp_path, smooth_images):
    path = tmp_path / "store"
    ImageStore.build(smooth_images(10), path)
    library = Library({"s": lambda: ImageStore.open(path)})
    first = library.get("s")
    assert library.get("s") is first
    shutil.rmtree(path)
    for _ in range(2):
        with pytest.raises(StoreError, match="deleted or damaged while the studio runs"):
            library.get("s")
    ImageStore.build(smooth_images(20), path)
    assert library.get("s").store.n == 20


def test_a_truncated_store_is_refused(tmp_path, smooth_images):
    path = tmp_path / "store"
    ImageStore.build(smooth_images(10), path)
    library = Library({"s": lambda: ImageStore.open(path)})
    library.get("s")
    with (path / "pixels.bin").open("r+b") as file:
        file.truncate(10)
    with pytest.raises(StoreError, match="deleted or damaged"):
        library.get("s")


def test_points_and_unknown_names_are_refused(make_store):
    points = make_store(np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32))
    library = Library({"moons": lambda: points})
    with pytest.raises(ArgumentError, match="the studio shows images"):
        library.get("moons")
    with pytest.raises(ArgumentError, match="store: got 'sun', expected one of moons"):
        library.get("sun")


def test_methods_that_do_not_fit_in_memory_are_not_selected_at_first(library, monkeypatch):
    opened = library.get("grey")
    assert opened.default_methods()[0] == "recommended"
    monkeypatch.setattr("golddiff.studio.library.free_memory", lambda: 0.0)
    assert opened.default_methods() == ["optimal"]
