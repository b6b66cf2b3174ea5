"""Callbacks of the page's controls. They keep no state: gradio passes each session's in."""

from __future__ import annotations

import html
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr
import torch
from PIL import Image

from golddiff.attribution import PixelSources
from golddiff.estimators.dial import is_measured
from golddiff.figures.sources import class_name
from golddiff.sources.picture import decode_picture, fit_to_shape, picture_bytes
from golddiff.store.images import ImageStore
from golddiff.studio.downloads import write_downloads
from golddiff.studio.explain import curves, draw_plots, sources_at, sources_html
from golddiff.studio.grid import draw_grid, selection_at
from golddiff.studio.inputs import drawn
from golddiff.studio.library import Library
from golddiff.studio.run import Run, Selection, Settings, prepare
from golddiff.system.errors import ArgumentError, GoldDiffError
from golddiff.system.pictures import cells, to_pixels
from golddiff.system.units import counted, duration, shape_text

ANY_CLASS = -1
FROM_NOISE, FROM_IMAGE = "noise", "an image"
# Seconds between pictures: after a step of all methods, and within a slow step
BETWEEN_PICTURES = 0.08
SLOW_STEP = 0.4
MEASURING = "measuring the novelty dial of this store, once; this takes some seconds"
PREVIEW = 256
# Error messages name an argument by the label of its control on the page.
LABELS = {
    "store": "Store", "methods": "Methods", "novelty": "Novelty of Recommended",
    "steps": "Steps", "n": "Images", "seed": "Seed", "labels": "Class", "sampler": "Sampler",
    "start": "Start from", "indices": "Number in the store", "upload": "Choose an image file",
    "picture": "Choose an image file", "drawing": "Draw", "hole": "Paint over what is missing",
    "mask": "Paint over what is missing", "upscale": "Size of the picture", "noise": "Noise",
    "missing part": "Paint over what is missing", "colours": "The colours are lost",
}  # fmt: skip


@contextmanager
def readable(**labels: str) -> Iterator[None]:
    """Turn a GoldDiffError into a message on the page that names the control, as ``labels`` do."""
    try:
        yield
    except GoldDiffError as error:
        name, colon, rest = str(error).partition(": ")
        message = f"{(LABELS | labels).get(name, name)}{colon}{rest}"
        raise gr.Error(message, print_exception=False) from error


class Handlers:
    """The callbacks of one studio; gradio deletes old files in ``folder``, its own folder."""

    def __init__(self, library: Library, folder: Path) -> None:
        self.library = library
        self.folder = folder

    @readable()
    def choose_store(self, name: str, image: Image.Image | None) -> tuple[Any, ...]:
        """Select a store: update methods, classes and text, and refit the start image."""
        opened = self.library.get(name)
        return (
            gr.CheckboxGroup(value=opened.default_methods()),
            gr.Dropdown(choices=class_choices(opened.store), value=ANY_CLASS),
            about(opened.store),
            0,
            None if image is None else self._preview(name, image),
        )

    @readable()
    def upload(self, name: str, path: str | None) -> tuple[Any, ...]:
        """Start from an uploaded image file."""
        return self._use(name, decode_picture("upload", received(path)))

    @readable()
    def draw(self, name: str, url: str | None) -> tuple[Any, ...]:
        """Start from the drawing."""
        image = drawn(url)
        if image is None:
            raise ArgumentError("drawing: it is empty; draw something first")
        return self._use(name, image)

    @readable()
    def training_image(self, name: str, row: float | None) -> tuple[Any, ...]:
        """Start from a training image of the store."""
        store = self.library.get(name).store
        return self._use(name, Image.fromarray(to_pixels(store.images([whole("indices", row)]))[0]))

    def generate(
        self, name: str, methods: list[str], variant: str, novelty: float, sampler: str,
        steps: float, seed: float, label: int | None, n: float, start: str, sigma: float,
        image: Image.Image | None, noisy: bool,
    ) -> Iterator[tuple[Any, ...]]:  # fmt: skip
        """Denoise and yield a picture after each step, or more often if steps are slow."""
        with readable():
            opened = self.library.get(name)
            settings = Settings(
                name, tuple(methods), variant, novelty, sampler, whole("steps", steps),
                whole("seed", seed), whole("n", n),
                None if label in (None, ANY_CLASS) else label,
                float(sigma) if start == FROM_IMAGE else None,
            )  # fmt: skip
            if "recommended" in methods and not is_measured(opened.store):
                yield gr.skip(), gr.skip(), status_html(MEASURING), gr.skip()
            run = prepare(opened, settings, self._start(name, start, image))
            yield from self._pictures(run, noisy)

    def _pictures(self, run: Run, noisy: bool) -> Iterator[tuple[Any, ...]]:
        status = "starting; the very first run compiles kernels"
        yield run, draw_grid(run, 0, noisy, None), status_html(status), gr.skip()
        begin, shown, total = time.perf_counter(), 0.0, len(run.sigmas)
        for method in run.advance():
            now = time.perf_counter()
            step_ends = method == run.settings.methods[-1]
            if now - shown < (BETWEEN_PICTURES if step_ends else SLOW_STEP):
                continue
            shown = now
            step = max(len(done) for done in run.states.values()) - 1
            status = f"step {step + 1} of {total}"
            yield run, draw_grid(run, step, noisy, None), status_html(status), gr.skip()
        count, n = run.steps_done, run.settings.n
        if run.stopped.is_set():
            status = f"stopped after {count} of {total} steps"
        else:
            result = f"{counted(n, 'image')} by {counted(len(run.settings.methods), 'method')}"
            status = f"{result} in {duration(time.perf_counter() - begin)}; click a pixel"
        slider = gr.Slider(maximum=max(count, 2), value=max(count, 1), interactive=count > 1)
        yield run, draw_grid(run, max(count - 1, 0), noisy, None), status_html(status), slider

    def stop(self, run: Run | None) -> None:
        """Stop the run after the current step; :meth:`generate` then updates the status."""
        if run is not None:
            run.stopped.set()

    def click(
        self, run: Run | None, step: float, noisy: bool, event: gr.SelectData
    ) -> Iterator[tuple[Any, ...]]:
        """Explain the pixel that was clicked."""
        with readable():
            if run is None or run.steps_done == 0:
                raise ArgumentError("nothing is denoised yet: press Generate")
            selected = selection_at(run, *map(int, event.index))
            if selected is None:
                raise ArgumentError("no pixel there: click into a method's image, not the start")
            yield from self._explain(run, step, noisy, selected)

    def explain(
        self, run: Run | None, step: float, noisy: bool, selected: Selection | None
    ) -> Iterator[tuple[Any, ...]]:
        """Explain the selected pixel again after the run or step changed, or else a default one."""
        if run is None or run.steps_done == 0:
            yield (gr.skip(),) * 6  # nothing at all would clear the page
            return
        s, (_, height, width) = run.settings, run.opened.store.shape
        if (
            selected is None
            or selected.method not in s.methods
            or not (selected.image < s.n and selected.y < height and selected.x < width)
        ):
            method = (run.with_sources or s.methods)[-1]
            selected = Selection(method, 0, height // 2, width // 2)
        with readable():
            yield from self._explain(run, step, noisy, selected)

    def _explain(
        self, run: Run, step: float, noisy: bool, selected: Selection
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the sources first, then the plots and files, which take longer."""
        # Check the files: reading a mapped file that was truncated would kill the process.
        self.library.get(run.settings.store)
        index = min(max(int(step), 1), run.steps_done) - 1
        grid = draw_grid(run, index, noisy, selected)
        sources: PixelSources | None = None
        try:
            sources = sources_at(run, selected, index)
            text = sources_html(run, selected, index, sources)
        except ArgumentError as error:
            reason = html.escape(str(error).removeprefix("denoiser: "))
            text = f'<p class="quiet">{reason}</p>'
        yield selected, grid, text, gr.skip(), gr.skip(), gr.skip()
        by_method = curves(run, selected)
        plots = draw_plots(run, index, selected, sources, by_method)
        files = write_downloads(run, index, selected, sources, by_method, self.folder)
        buttons = (gr.DownloadButton(value=str(file), interactive=True) for file in files)
        yield gr.skip(), gr.skip(), gr.skip(), plots, *buttons

    def _start(self, name: str, start: str, image: Image.Image | None) -> torch.Tensor | None:
        if start != FROM_IMAGE:
            return None
        if image is None:
            raise ArgumentError("start: no image yet; upload, draw or pick one first")
        return fit_to_shape(image, self.library.get(name).store.shape)

    def _use(self, name: str, image: Image.Image) -> tuple[Any, ...]:
        return image, self._preview(name, image), FROM_IMAGE

    def _preview(self, name: str, image: Image.Image) -> Image.Image:
        small = fit_to_shape(image, self.library.get(name).store.shape)
        return Image.fromarray(cells(small[None], PREVIEW)[0])


def received(path: str | None) -> bytes:
    """Read the bytes of an uploaded picture; pages that send the same one share its file."""
    if path is None:
        raise ArgumentError("upload: got no file; choose one")
    return picture_bytes("upload", path)


def class_choices(store: ImageStore) -> list[tuple[str, int]]:
    """Names and numbers of a store's classes, after the choice of any class."""
    return [("any class", ANY_CLASS), *((class_name(store, c), c) for c in store.classes)]


def about(store: ImageStore) -> str:
    """A short description of a store: number and shape of its images."""
    return f"{store.n:,} images, {shape_text(store.shape)}"


def whole(name: str, value: object) -> int:
    """Convert a field's value to int; the browser sends 10.0, and other clients anything."""
    if value is None:
        raise ArgumentError(f"{name}: is empty, expected a whole number")
    if not isinstance(value, int | float) or value % 1 != 0:
        raise ArgumentError(f"{name}: got {value!r:.20}, expected a whole number")
    return int(value)


def status_html(text: str) -> str:
    """A status line that screen readers announce when it changes."""
    return f'<div role="status">{html.escape(text)}</div>'
