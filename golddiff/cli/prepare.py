"""``golddiff prepare``: compute ahead of time what the first run would compute."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import golddiff
from golddiff.cli.command import argument, command, option
from golddiff.cli.first_use import create_with_bars, take_steps
from golddiff.cli.options import (
    JsonPath,
    MethodName,
    SamplerName,
    Steps,
    Threads,
    check_apart,
    parse_labels,
)
from golddiff.cli.terminal import counting, describe, say, starting, summary, write_json
from golddiff.estimators.registry import DEFAULT_METHOD, MethodSettings, check_method
from golddiff.system.errors import ArgumentError, StoreError
from golddiff.system.files import check_writable
from golddiff.system.units import byte_size, counted, duration


@dataclass(frozen=True)
class _PrepareOptions:
    store: Path = argument("A store made by golddiff index.")
    method: MethodName = DEFAULT_METHOD
    steps: Steps = 10
    sampler: SamplerName = "ddim"
    sigmas: tuple[float, ...] | None = option(
        "Comma-separated noise levels, instead of those of --steps and --sampler.", None
    )
    labels: str | None = option(
        "Comma-separated classes to prepare for; default: all images together.", None
    )
    json: JsonPath = None
    threads: Threads = None
    settings: MethodSettings = field(default_factory=MethodSettings)


@command
def prepare(options: _PrepareOptions) -> None:
    """Compute ahead of time what a first run needs: covariance, masks, index, compiled kernels.

    Takes one step at each noise level and saves the results in the store's folder, without changing
    files already there. Give the same method, settings and steps as the later runs.

    For example:

      golddiff prepare cifar.store --method golddiff-pca
      golddiff prepare cifar.store --method adaptive-pca --tol 0.05 --steps 20
    """
    method, settings = options.method, options.settings
    check_method(method, settings)
    check_apart("json", options.json, options.store)
    starting()
    levels = _levels(options)

    from golddiff.store.novelty import spacing
    from golddiff.system.parallel import use_threads

    use_threads(options.threads)
    start = time.perf_counter()
    store = golddiff.ImageStore.open(options.store)
    check_writable("store", store.path / "manifest.json")
    labels = parse_labels(options.labels, store, (options.labels or "").count(",") + 1)
    classes: list[int | None] = [None] if labels is None else [*dict.fromkeys(labels)]
    before = _file_sizes(store.path)
    denoiser = create_with_bars(method, store, settings)
    with counting("preparing noise levels", len(classes) * len(levels)) as on_level:
        take_steps(denoiser, levels, classes, lambda: on_level(1))
    if store.n > 1:
        spacing(store)  # for the novelty that golddiff sample reports
    new_files = {name: size for name, size in _file_sizes(store.path).items() if name not in before}
    seconds = time.perf_counter() - start
    say(describe(store))
    if unsaved := store.artifacts.unsaved:
        raise StoreError(
            f"store: {byte_size(unsaved)} of results could not be written in {store.path}; make "
            "room on its disk"
        )
    made = f"{counted(len(new_files), 'file')} made, {byte_size(sum(new_files.values()))}"
    say(
        f"{method} is prepared for {counted(len(levels), 'noise level')}: {made}, "
        f"in {duration(seconds)}"
    )
    figures = {
        "golddiff": golddiff.__version__, "store": summary(store), "method": method,
        "settings": settings.given(), "sigmas": levels, "labels": classes,
        "seconds": seconds, "made": new_files,
    }  # fmt: skip
    write_json(options.json, figures)


def _levels(options: _PrepareOptions) -> list[float]:
    from golddiff.samplers import check_steps, checked_levels, noise_levels

    if options.sigmas is None:
        check_steps(options.steps, options.sampler)
        return noise_levels(options.steps, options.sampler)
    defaults = (_PrepareOptions.steps, _PrepareOptions.sampler)
    if (options.steps, options.sampler) != defaults:
        raise ArgumentError("sigmas: replaces --steps and --sampler; give one or the other")
    return checked_levels(sorted(options.sigmas, reverse=True))


def _file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file in a folder, by relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
