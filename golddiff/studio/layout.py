"""The page: its controls, their layout, and the handlers that they call."""

from __future__ import annotations

from importlib import resources
from typing import Any

import gradio as gr

from golddiff.estimators.dial import NOVELTY
from golddiff.estimators.registry import SHOWN
from golddiff.studio.handlers import (
    ANY_CLASS,
    FROM_IMAGE,
    FROM_NOISE,
    Handlers,
    about,
    class_choices,
)
from golddiff.studio.inputs import sheet
from golddiff.studio.restore_tab import restore_tab
from golddiff.studio.run import MAX_IMAGES, MAX_STEPS

TITLE = "GoldDiff studio"
INKS = ("#ffffff", "#9ca3af", "#000000", "#dc2626", "#16a34a", "#2563eb", "#facc15")
TAKE_SKETCH = "(store) => [store, document.querySelector('#sketch canvas').drawn()]"
CSS = resources.files("golddiff.studio").joinpath("studio.css").read_text("utf-8")
# System fonts, so that nothing is downloaded
THEME = gr.themes.Soft(
    primary_hue="amber",
    neutral_hue="stone",
    font=[gr.themes.Font("system-ui"), gr.themes.Font("sans-serif")],
    font_mono=[gr.themes.Font("ui-monospace"), gr.themes.Font("monospace")],
)


def build_page(handlers: Handlers) -> gr.Blocks:
    """Build the page: first the controls from top to bottom, then their events."""
    names = handlers.library.names
    # Fill in the first store here: a load event might come after a quick click.
    first = handlers.library.get(names[0])
    # Every ten minutes, delete images of runs that are older than an hour.
    page = gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600))
    with page:
        run, selected, image = gr.State(None), gr.State(None), gr.State(None)
        gr.HTML(f"<h1>{TITLE}</h1><p>Compare methods on the same noise, and click a pixel to see "
                "its training images.</p>", elem_id="title")  # fmt: skip
        with gr.Tab("Generate"), gr.Row(equal_height=False):
            with gr.Column(scale=0, min_width=320, elem_id="controls"):
                with gr.Row():
                    generate = gr.Button("Generate", variant="primary", elem_id="generate")
                    stop = gr.Button("Stop", elem_id="stop", min_width=80, scale=0)
                with gr.Group():
                    store = gr.Dropdown(names, value=names[0], label="Store", elem_id="store",
                                        filterable=False)  # fmt: skip
                    summary = gr.HTML(about(first.store), elem_id="about", padding=True)
                    methods = gr.CheckboxGroup(
                        [(method.title, name) for name, method in SHOWN.items()],
                        value=first.default_methods(), label="Methods", elem_id="methods",
                    )  # fmt: skip
                    novelty = gr.Slider(
                        0, 1, NOVELTY, step=0.05, label="Novelty of Recommended", elem_id="novelty",
                        info="0: copies of training images; 1: as new as unseen images",
                        buttons=[],
                    )  # fmt: skip
                with gr.Group():
                    with gr.Row():
                        steps = gr.Slider(1, MAX_STEPS, 10, step=1, label="Steps", elem_id="steps",
                                          buttons=[])  # fmt: skip
                        n = gr.Slider(1, MAX_IMAGES, 2, step=1, label="Images", elem_id="n",
                                      buttons=[])  # fmt: skip
                    with gr.Row():
                        seed = gr.Number(0, label="Seed", elem_id="seed", min_width=80)
                        label = gr.Dropdown(class_choices(first.store), value=ANY_CLASS,
                                            label="Class", elem_id="label",
                                            min_width=120)  # fmt: skip
                    with gr.Row():
                        sampler = gr.Radio([("DDIM", "ddim"), ("Heun", "heun")], value="ddim",
                                           label="Sampler", min_width=120)  # fmt: skip
                        variant = gr.Radio(["released", "text"], value="released", min_width=150,
                                           label="Golden subset schedule")  # fmt: skip
                with gr.Accordion("Start from an image", open=False, elem_id="start"):
                    start = gr.Radio([FROM_NOISE, FROM_IMAGE], value=FROM_NOISE, label="Start from",
                                     elem_id="from")  # fmt: skip
                    sigma = gr.Slider(0.05, 5, 0.7, step=0.05, label="Noise σ added to the image",
                                      elem_id="sigma", buttons=[])  # fmt: skip
                    with gr.Tabs():
                        with gr.Tab("Upload"):
                            upload = gr.UploadButton("Choose an image file", elem_id="upload")
                        with gr.Tab("Draw"):
                            sheet("sketch", INKS)
                            sketch = gr.Textbox(visible=False)
                            use_sketch = gr.Button("Use the drawing", elem_id="use-sketch")
                        with gr.Tab("Training image"):
                            row = gr.Number(0, label="Number in the store")
                            use_row = gr.Button("Use this training image", elem_id="use-row")
                    gr.HTML("Preview in the store's image size:", padding=True)
                    preview = gr.Image(
                        label="The image", show_label=False, interactive=False, format="png",
                        type="pil", buttons=[], height=160, elem_id="preview",
                    )  # fmt: skip
            with gr.Column(scale=1, min_width=480, elem_id="results"):
                status = gr.HTML('<div role="status">press Generate</div>', elem_id="status")
                grid = gr.Image(
                    label="All methods", show_label=False, interactive=False, format="png",
                    type="pil", buttons=[], elem_id="grid",
                    alt_text="Every method's images side by side",
                    placeholder="The methods appear here side by side",
                )  # fmt: skip
                with gr.Row(equal_height=True):
                    step = gr.Slider(
                        1, 10, 10, step=1, label="Step (drag to see earlier steps)",
                        elem_id="step", scale=3, buttons=[], interactive=False,
                    )  # fmt: skip
                    noisy = gr.Checkbox(False, label="show the noisy inputs",
                                        elem_id="noisy", scale=1, min_width=200)  # fmt: skip
                sources = gr.HTML(
                    "<p class='quiet'>Click a pixel: the training images behind it and their "
                    "weights appear here.</p>", elem_id="sources", padding=True,
                )  # fmt: skip
                plots = gr.Plot(label="Plots of the pixel", show_label=False, format="png",
                                elem_id="plots")  # fmt: skip
                with gr.Row():
                    picture = gr.DownloadButton("Download the run (PNG)", interactive=False,
                                                elem_id="png")  # fmt: skip
                    record = gr.DownloadButton("Download its data (JSON)", interactive=False,
                                               elem_id="json")  # fmt: skip

        restore_tab(page, handlers.library)

        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        store.change(handlers.choose_store, [store, image],
                     [methods, label, summary, row, preview], **quiet)  # fmt: skip
        start_image = [image, preview, start]
        upload.upload(handlers.upload, [store, upload], start_image, **quiet)
        use_sketch.click(handlers.draw, [store, sketch], start_image, js=TAKE_SKETCH, **quiet)
        use_row.click(handlers.training_image, [store, row], start_image, **quiet)
        stop.click(handlers.stop, [run], None, **quiet)
        settings = [store, methods, variant, novelty, sampler, steps, seed, label, n, start, sigma]
        running = generate.click(
            handlers.generate, [*settings, image, noisy], [run, grid, status, step],
            concurrency_limit=8, **quiet,
        )  # fmt: skip
        view, explained = [run, step, noisy], [selected, grid, sources, plots, picture, record]
        quiet["trigger_mode"] = "always_last"
        running.success(handlers.explain, [*view, selected], explained, **quiet)
        grid.select(handlers.click, view, explained, **quiet)
        for event in (step.input, noisy.input):
            event(handlers.explain, [*view, selected], explained, **quiet)
    return page
