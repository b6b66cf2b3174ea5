"""The tab where a picture is restored: one draws the hole, or says what else it lost."""

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
from golddiff.estimators.measurement import pictures_of
from golddiff.estimators.noise_level import judged_noise
from golddiff.estimators.operators import known_of
from golddiff.figures.sources import figure, image_name, percent
from golddiff.sources.picture import fitted
from golddiff.store.images import ImageStore
from golddiff.studio.handlers import readable, received, status_html, whole
from golddiff.studio.inputs import drawn, sheet
from golddiff.studio.library import Library
from golddiff.system.errors import ArgumentError
from golddiff.system.pictures import cells, data_uri

MOST = 8  # restorations
SOURCES = 8  # photographs shown behind each
SIDE = 160
SIZES = {"as it should be": 1, "2 times too small": 2, "3 times": 3, "4 times": 4}
INK = "#dc2626"
TAKE_HOLE = "(...all) => { all[2] = document.querySelector('#hole canvas').drawn(); return all; }"


class Restorer:
    """What the tab's controls do."""

    def __init__(self, library: Library) -> None:
        self.library = library

    @readable()
    def bring(self, name: str, path: str | None) -> tuple[Image.Image, str]:
        """A picture from a file, and under the sheet."""
        image = received(path)
        return image, self.under(name, image)

    @readable()
    def under(self, name: str, image: Image.Image | None) -> str:
        """The picture in the store's shape, where one draws the hole."""
        if image is None:
            return ""
        small = cells(fitted(image, self.library.get(name).store.shape)[None], SIDE)[0]
        return f"<style>#hole .paper {{ background-image: url({data_uri(small)}) }}</style>"

    def restored(
        self, name: str, image: Image.Image | None, hole: str, size: int, colours: bool,
        blur: float, n: float, noise: str,
    ) -> Iterator[tuple[Any, ...]]:  # fmt: skip
        """What :meth:`stop` sets; then a line about the restorations, and they themselves."""
        with readable():
            if image is None:
                raise ArgumentError("picture: none yet; choose a file first")
            count = whole("Restorations", n)
            try:
                level = float(noise) if noise.strip() else None
            except ValueError as error:
                raise ArgumentError(f"noise: got {noise!r:.20}, expected a number") from error
            opened, ink = self.library.get(name), drawn(hole)
            store = opened.store
            if ink is not None:  # it lies over the picture as cropped
                _, height, width = store.shape
                ink = ink.convert("L").resize((width, height), Image.Resampling.BOX)
            y, operator = known_of(
                image, store.shape, missing=ink, upscale=size, colours=colours, blur=blur or None
            )
            stopped = threading.Event()
            yield stopped, status_html("restoring"), gr.skip()

            def on_step(images: int) -> None:
                if stopped.is_set():
                    raise _StoppedError
                opened.lock.release()  # for a step of whoever else waits
                time.sleep(0.001)
                opened.lock.acquire()

            try:
                with opened.lock:
                    if level is None:
                        level, _ = judged_noise(store, operator, y[None])
                    samples = golddiff.restore(
                        store, y[None], operator, level, n=count, attribution=True, on_step=on_step
                    )
                    found = samples.novelty
            except _StoppedError:
                yield gr.skip(), status_html("stopped"), gr.skip()
                return
            copies = int(found.copies.sum())
            copied = f"; {copies} of {count} copy a training image" if copies else ""
            about = f"noise {level:.2g}, novelty {float(found.novelty.mean()):.2f}{copied}"
            shown = pictures_of(samples.images, y, operator)
            yield gr.skip(), status_html(about), _page(store, shown, samples.attribution or [])

    def stop(self, stopped: threading.Event | None) -> None:
        """End the restoration after its current step; :meth:`restored` says so."""
        if stopped is not None:
            stopped.set()


class _StoppedError(Exception):
    """Someone pressed Stop."""


def _page(
    store: ImageStore, shown: Mapping[str, torch.Tensor], found: Iterable[Attribution]
) -> str:
    """Pictures by name, and the photographs behind each restoration."""
    pictures = zip(shown, [cells(one[None], SIDE)[0] for one in shown.values()], strict=True)
    body = f'<div class="sources restored">{_row(pictures)}</div>'
    for i, one in enumerate(found):
        rows, weights = one.top_images(SOURCES)
        named = (
            f"{percent(w)} {image_name(store, int(row))}"
            for row, w in zip(rows, weights, strict=True)
        )
        behind = _row(zip(named, cells(store.images(rows), SIDE), strict=True))
        body += f'<p>Photographs behind restoration {i + 1}:</p><div class="sources">{behind}</div>'
    return body


def _row(pictures: Any) -> str:
    return "".join(figure(pixels, caption, caption) for caption, pixels in pictures)


def restore_tab(library: Library) -> None:
    """The tab's controls, and what each of them calls."""
    handlers, quiet = Restorer(library), {"api_visibility": "private"}
    with gr.Tab("Restore a picture", elem_id="restore"), gr.Row(equal_height=False):
        image, stopped = gr.State(None), gr.State(None)
        with gr.Column(scale=0, min_width=320):
            store = gr.Dropdown(library.names, value=library.names[0], filterable=False,
                                label="Restore it from the images of")  # fmt: skip
            upload = gr.UploadButton("Choose an image file", elem_id="damaged")
            gr.HTML("Paint over what is missing:", padding=True)
            under = gr.HTML("", elem_id="under")
            sheet("hole", [INK])
            hole = gr.Textbox(visible=False)
            size = gr.Dropdown(list(SIZES.items()), value=1, label="Its size", filterable=False)
            colours = gr.Checkbox(False, label="It has lost its colours")
            blur = gr.Slider(0, 4, 0, step=0.5, label="Blurred by so many pixels", buttons=[])
            n = gr.Slider(1, MOST, 4, step=1, label="Restorations", buttons=[])
            noise = gr.Textbox(label="Noise", info="white is 1, black -1; judged where empty")
            with gr.Row():
                button = gr.Button("Restore", variant="primary", elem_id="restore-it")
                stop = gr.Button("Stop", elem_id="stop-restoring", min_width=80, scale=0)
        with gr.Column(scale=1, min_width=320, elem_id="restored"):
            status, out = gr.HTML(status_html("bring a picture, paint its hole")), gr.HTML("")
    upload.upload(handlers.bring, [store, upload], [image, under], **quiet)
    store.change(handlers.under, [store, image], under, **quiet)
    asked = [store, image, hole, size, colours, blur, n, noise]
    button.click(handlers.restored, asked, [stopped, status, out], js=TAKE_HOLE,
                 scroll_to_output=True, **quiet)  # fmt: skip
    stop.click(handlers.stop, stopped, None, **quiet)
