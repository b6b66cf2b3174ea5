"""The handlers of the page's controls, called without a page."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("gradio")

import gradio as gr
from PIL import Image

from golddiff.studio.handlers import ANY_CLASS, FROM_NOISE, LABELS, Handlers
from golddiff.studio.inputs import SIDE
from golddiff.studio.layout import build_page
from golddiff.studio.library import Library
from golddiff.studio.restore_tab import Restorer
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


def test_a_stopped_restoration_ends_after_its_step(handlers):
    hole = Image.new("RGB", (SIDE, SIDE), "black")
    hole.paste("red", (0, 0, SIDE // 2, SIDE))
    drawing = as_url(hole)
    restorer, picture = Restorer(handlers.library), Image.linear_gradient("L")
    ours, other = (SimpleNamespace(session_hash=name) for name in ("ours", "other"))
    for page, expected in ((ours, "stopped"), (other, "novelty")):
        outputs = restorer.restored("s", picture, drawing, 1, False, 0, 1, "0.1", ours)
        next(outputs)
        restorer.stop(page)
        assert [expected in status for status, _ in outputs] == [True]


def test_without_a_run_moving_a_control_leaves_the_page_as_it_is(handlers):
    assert list(handlers.explain(None, 1, True, None)) == [(gr.skip(),) * 6]
