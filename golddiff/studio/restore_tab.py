"""The tab that restores a picture: paint the hole, or set another kind of damage."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import gradio as gr
import torch
from PIL import Image

import golddiff
from golddiff.attribution import Attribution
from golddiff.estimators.measurement import misfit, pictures_of
from golddiff.estimators.noise_level import noise_of_file
from golddiff.estimators.operators import known_of
from golddiff.figures.sources import figure, image_name, percent
from golddiff.sources.picture import decode_picture, fit_to_shape
from golddiff.store.images import ImageStore
from golddiff.studio.handlers import readable, received, status_html, whole
from golddiff.studio.inputs import drawn, sheet
from golddiff.studio.library import Library
from golddiff.system.errors import ArgumentError
from golddiff.system.pictures import cells, data_uri

MAX_RESTORATIONS = 8
SOURCES = 8  # training images shown for each restoration
SIDE = 160
SIZES = {"full": 1, "2 times too small": 2, "3 times too small": 3, "4 times too small": 4}
INK = "#dc2626"
TAKE_HOLE = "(...all) => { all[2] = document.querySelector('#hole canvas').drawn(); return all; }"


class Restorer:
    """Callbacks of the tab's controls."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.running: dict[str | None, threading.Event] = {}  # by page; set to stop

    @readable()
    def bring(self, name: str, path: str | None) -> tuple[bytes, str]:
        """Read an uploaded picture and show it under the drawing canvas."""
        data = received(path)
        return data, self.under(name, data)

    @readable()
    def under(self, name: str, data: bytes | None) -> str:
        """A style that shows the picture, fitted to the store's shape, under the canvas."""
        if data is None:
            return ""
        image, shape = decode_picture("upload", data), self.library.get(name).store.shape
        small = cells(fit_to_shape(image, shape)[None], SIDE)[0]
        return f"<style>#hole .paper {{ background-image: url({data_uri(small)}) }}</style>"

    def restored(
        self, name: str, data: bytes | None, hole: str, size: int, colours: bool,
        blur: float, n: float, noise: str, request: gr.Request,
    ) -> Iterator[tuple[Any, ...]]:  # fmt: skip
        """Restore; yield status lines and the pictures."""
        with readable(n="Restorations"):
            if data is None:
                raise ArgumentError("picture: none yet; choose a file first")
            count = whole("n", n)
            try:
                level = float(noise) if noise.strip() else None
            except ValueError as error:
                raise ArgumentError(f"noise: got {noise!r:.20}, expected a number") from error
            opened, ink = self.library.get(name), drawn(hole)
            store = opened.store
            if ink is not None:  # it was painted over the cropped picture
                _, height, width = store.shape
                ink = ink.convert("L").resize((width, height), Image.Resampling.BOX)
            y, operator, known = known_of(
                decode_picture("picture", data), store.shape, missing=ink, upscale=size,
                colours=colours, blur=blur or None,
            )  # fmt: skip
            stopped = self.running[request.session_hash] = threading.Event()
            yield status_html("restoring"), gr.skip()

            def on_step(images: int) -> None:
                if stopped.is_set():
                    raise _StoppedError
                opened.lock.release()  # lets another session compute a step
                time.sleep(0.001)
                opened.lock.acquire()

            try:
                with opened.lock:
                    if level is None:
                        level, _ = noise_of_file(
                            store, operator, y, upscale=size, blur=blur, data=data
                        )
                    samples = golddiff.restore(
                        store, y[None], operator, level, n=count, attribution=True, on_step=on_step
                    )
                    novelty = samples.novelty
            except _StoppedError:
                yield status_html("stopped"), gr.skip()
                return
            copies = int(novelty.copies.sum())
            copied = f", copies: {copies} of {count}" if copies else ""
            about = f"noise {level:.2g}, novelty {float(novelty.novelty.mean()):.2f}{copied}"
            if warning := misfit(samples.images, y, operator, level):
                about += f"; {warning}"
            pictures = pictures_of(samples.images, known)
            yield status_html(about), _page(store, pictures, samples.attribution or [])

    def stop(self, request: gr.Request) -> None:
        """Stop a page's restoration after its current step; :meth:`restored` updates the status."""
        if request.session_hash in self.running:
            self.running.pop(request.session_hash).set()


class _StoppedError(Exception):
    """The user pressed Stop, or closed the page."""


def _page(
    store: ImageStore, pictures: Mapping[str, torch.Tensor], attributions: Iterable[Attribution]
) -> str:
    """HTML of the named pictures, followed by the training images behind each restoration."""
    pixels = [cells(picture[None], SIDE)[0] for picture in pictures.values()]
    body = f'<div class="sources restored">{_row(pictures, pixels)}</div>'
    for i, attribution in enumerate(attributions):
        rows, weights = attribution.top_images(SOURCES)
        captions = (
            f"{percent(w)} {image_name(store, int(row))}"
            for row, w in zip(rows, weights, strict=True)
        )
        sources = _row(captions, cells(store.images(rows), SIDE))
        body += f"<p>Training images behind restoration {i + 1}:</p>"
        body += f'<div class="sources">{sources}</div>'
    return body


def _row(captions: Iterable[str], pictures: Iterable[Any]) -> str:
    pairs = zip(captions, pictures, strict=True)
    return "".join(figure(pixels, caption, caption) for caption, pixels in pairs)


def restore_tab(page: gr.Blocks, library: Library) -> None:
    """Build the tab: its controls, then their events."""
    handlers, quiet = Restorer(library), {"api_visibility": "private"}
    with gr.Tab("Restore a picture", elem_id="restore"), gr.Row(equal_height=False):
        data = gr.State(None)
        with gr.Column(scale=0, min_width=320):
            store = gr.Dropdown(library.names, value=library.names[0], filterable=False,
                                label="Restore from the images of")  # fmt: skip
            upload = gr.UploadButton("Choose an image file", elem_id="damaged")
            gr.HTML("Paint over what is missing:", padding=True)
            under = gr.HTML("", elem_id="under")
            sheet("hole", [INK])
            hole = gr.Textbox(visible=False)
            sizes = list(SIZES.items())
            size = gr.Dropdown(sizes, value=1, label="Size of the picture", filterable=False)
            colours = gr.Checkbox(False, label="The colours are lost")
            blur = gr.Slider(0, 4, 0, step=0.5, label="Blur, in pixels", buttons=[])
            n = gr.Slider(1, MAX_RESTORATIONS, 4, step=1, label="Restorations", buttons=[])
            noise = gr.Textbox(label="Noise", info="for black at -1 and white at 1; else estimated")
            with gr.Row():
                button = gr.Button("Restore", variant="primary", elem_id="restore-it")
                stop = gr.Button("Stop", elem_id="stop-restoring", min_width=80, scale=0)
        with gr.Column(scale=1, min_width=320, elem_id="restored"):
            status, out = gr.HTML(status_html("choose an image, paint its hole")), gr.HTML("")
    upload.upload(handlers.bring, [store, upload], [data, under], **quiet)
    store.change(handlers.under, [store, data], under, **quiet)
    settings = [store, data, hole, size, colours, blur, n, noise]
    button.click(handlers.restored, settings, [status, out], js=TAKE_HOLE,
                 scroll_to_output=True, **quiet)  # fmt: skip
    stop.click(handlers.stop, None, None, **quiet)
    page.unload(handlers.stop)
