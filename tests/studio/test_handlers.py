"""The handlers of the page's controls, called without a page."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("gradio")

import gradio as gr
import numpy as np
import torch
from PIL import Image

from golddiff.estimators.noise_level import estimated_noise
from golddiff.estimators.operators import known_of
from golddiff.sources.picture import decode_picture, jpeg_error
from golddiff.studio import restore_tab
from golddiff.studio.handlers import ANY_CLASS, FROM_NOISE, LABELS, Handlers
from golddiff.studio.inputs import SIDE
from golddiff.studio.layout import build_page
from golddiff.studio.library import Library
from golddiff.studio.restore_tab import Restorer
from golddiff.system.errors import ArgumentError
from tests.sources.make import encoded
from tests.studio.test_inputs import as_url

STEPS = 2


@pytest.fixture
def handlers(make_store, smooth_images, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    store = make_store(smooth_images(20, (1, 8, 8)))
    return Handlers(Library({"s": lambda: store}), tmp_path)


def generated(handlers, steps=STEPS, seed=0):
    """The last output of a run: the run, its picture, the status line and the slider."""
    outputs = handlers.generate(
        "s", ["optimal"], "released", 0.7, "ddim", steps, seed, ANY_CLASS, 1, FROM_NOISE, 0.5,
        None, False,
    )  # fmt: skip
    return list(outputs)[-1]


def test_a_run_ends_with_its_sources_plots_and_files(handlers):
    run, _, status, _ = generated(handlers)
    assert run.steps_done == STEPS
    assert "1 image by 1 method in" in status
    (selected, _, text, *_), (*_, plots, png, figures) = handlers.explain(run, STEPS, False, None)
    assert selected.method == "optimal"
    assert "effectively" in text
    assert plots.axes
    files = [Path(button.value["path"]) for button in (png, figures)]
    assert [file.name for file in files] == ["golddiff-run.png", "golddiff-run.json"]
    assert all(file.is_relative_to(handlers.folder) for file in files)


@pytest.mark.parametrize("value", [None, 2.5, float("nan"), float("inf"), "x", [1], {"a": 1}])
def test_steps_and_seed_must_be_whole_numbers(handlers, value):
    with pytest.raises(gr.Error, match=r"Steps: (got .*|is empty), expected a whole number"):
        generated(handlers, steps=value)
    with pytest.raises(gr.Error, match=r"Seed: (got .*|is empty), expected a whole number"):
        generated(handlers, seed=value)


def test_a_training_image_number_must_be_a_row_of_the_store(handlers):
    image, preview, _ = handlers.training_image("s", 3.0)
    assert image.size == (8, 8)
    assert preview.size[0] >= 8
    for row in (3.5, float("nan"), -1, 20, None):
        with pytest.raises(gr.Error, match=r"Number in the store: (got|is empty)"):
            handlers.training_image("s", row)


def test_messages_use_the_labels_of_the_page(handlers):
    page = build_page(handlers)
    configs = [block.get_config() for block in page.blocks.values()]
    shown = {str(config.get(key)) for key in ("label", "value") for config in configs}
    assert all(any(label in text for text in shown) for label in LABELS.values())
    fields = [block for block in page.blocks.values() if isinstance(block, gr.Number)]
    # Gradio's own bounds give messages that name no control.
    assert [(field.minimum, field.maximum) for field in fields] == [(None, None)] * 2


def restored(handlers, data, hole="black", blur=0, n=1, noise="0.1"):
    """The status line and page of a restoration; ``hole`` is the colour painted in the corner."""
    sheet = Image.new("RGB", (SIDE, SIDE), "black")
    sheet.paste(hole, (0, 0, SIDE // 4, SIDE // 4))
    settings = ("s", data, as_url(sheet), 1, False, blur, n, noise)
    restorer, page = Restorer(handlers.library), SimpleNamespace(session_hash="page")
    return list(restorer.restored(*settings, page))[-1]


def test_two_pages_may_upload_the_same_picture(handlers, tmp_path):
    """Gradio keeps one file for equal uploads."""
    (tmp_path / "upload.png").write_bytes(encoded(Image.linear_gradient("L").resize((8, 8))))
    for _ in range(2):
        assert handlers.upload("s", str(tmp_path / "upload.png"))[0].size == (8, 8)


@pytest.mark.parametrize("hole", ["black", "red"])
def test_the_transparent_part_of_an_upload_is_filled(handlers, monkeypatch, hole):
    shown = []
    monkeypatch.setattr(restore_tab, "_page", lambda store, pictures, _: shown.append(pictures))
    erased = Image.linear_gradient("L").resize((8, 8)).convert("RGBA")
    erased.paste((0, 0, 0, 0), (4, 4, 8, 8))
    restored(handlers, encoded(erased), hole)
    missing = torch.zeros(8, 8, dtype=torch.bool)
    missing[4:, 4:] = True
    missing[:2, :2] = hole == "red"
    assert torch.equal(shown[0]["known"][0] == 0, missing)


def test_the_encoding_of_a_blurred_jpeg_counts_as_noise(handlers):
    squares = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16), np.uint8))
    data = encoded(squares, "jpeg", quality=20)
    error = jpeg_error(data, 8, 8)
    assert error > 0.02
    library = handlers.library
    y, operator, _ = known_of(decode_picture("a", data), (1, 8, 8), blur=1)
    noise, _ = estimated_noise(library.get("s").store, operator, y[None])
    status, _ = restored(handlers, data, blur=1, noise="")
    assert f"noise {np.hypot(noise, error):.2g}, " in status


def test_a_blur_that_does_not_fit_is_told_as_by_the_command(handlers):
    squares = Image.fromarray((np.indices((8, 8)).sum(axis=0) % 2 * 255).astype(np.uint8))
    assert "no picture fits yours" in restored(handlers, encoded(squares), blur=2, noise="0.01")[0]
    flat = encoded(Image.new("L", (8, 8), 128))
    assert "no picture fits" not in restored(handlers, flat, blur=2, noise="0.01")[0]


def test_a_message_of_this_tab_names_its_own_control(handlers):
    with pytest.raises(gr.Error, match="Restorations: got 0"):
        restored(handlers, encoded(Image.linear_gradient("L")), "red", n=0)


def test_data_of_points_is_refused_by_its_name(make_store):
    points = make_store(torch.rand(20, 2))
    with pytest.raises(ArgumentError, match=r"^moons: holds points of 2 values"):
        Library({"moons": lambda: points}).get("moons")


def test_a_stopped_restoration_ends_after_its_step(handlers):
    hole = Image.new("RGB", (SIDE, SIDE), "black")
    hole.paste("red", (0, 0, SIDE // 2, SIDE))
    drawing = as_url(hole)
    restorer, picture = Restorer(handlers.library), encoded(Image.linear_gradient("L"))
    ours, other = (SimpleNamespace(session_hash=name) for name in ("ours", "other"))
    for page, expected in ((ours, "stopped"), (other, "novelty")):
        outputs = restorer.restored("s", picture, drawing, 1, False, 0, 1, "0.1", ours)
        next(outputs)
        restorer.stop(page)
        assert [expected in status for status, _ in outputs] == [True]


def test_without_a_run_moving_a_control_leaves_the_page_as_it_is(handlers):
    assert list(handlers.explain(None, 1, True, None)) == [(gr.skip(),) * 6]
