"""Coverage-guided inputs: atheris (libFuzzer) keeps those that reach new code of the readers."""

from __future__ import annotations

import importlib
import os
import pkgutil
import random
import shutil
import sys
import types
from pathlib import Path

from reliability.fuzz.target import Examiner
from reliability.fuzz.worker import Report

# Instrumented as they are imported; atheris takes whole packages.
PACKAGES = ("golddiff", "PIL")
# Imported already by what this runs in, so instrumented where they are.
IMPORTED = ("zipfile", "tarfile", "gzip", "pickletools", "numpy.lib._format_impl")


def instrument() -> None:
    """Have all readers that are imported from now on count what they reach."""
    import atheris

    import golddiff.kernels

    # Numba does not compile what is instrumented.
    kernels = pkgutil.walk_packages(golddiff.kernels.__path__, "golddiff.kernels.")
    atheris.instrument_imports(PACKAGES, [module.name for module in kernels]).__enter__()
    for module in IMPORTED:
        _instrument(importlib.import_module(module))


def guided(examiner: Examiner, inputs: int, seed: int, report: Report, place: Path) -> None:
    """Give a reader inputs chosen by coverage; the process ends when they are done."""
    import atheris

    target = examiner.target
    corpus = place / "corpus"
    corpus.mkdir()
    for i, data in enumerate(examiner.seeds):
        (corpus / f"seed{i}").write_bytes(data)
    others = list(examiner.seeds)

    def one(data: bytes) -> None:
        if not target.general and not data.startswith(b"{"):
            return  # libFuzzer begins with an empty input, which is no bundle of files
        report.examine(examiner, data)
        if report.tally.inputs >= inputs:
            report.write()
            shutil.rmtree(place, ignore_errors=True)
            # libFuzzer would go on to write a report of its own.
            os._exit(0)

    def damage(data: bytes, most: int, number: int) -> bytes:
        rng = random.Random(number)
        if target.general and rng.random() < 0.3:
            return bytes(atheris.Mutate(data, most))
        return target.damage(rng, data, others)[:most]

    flags = [f"-seed={seed + 1}", "-rss_limit_mb=0", "-timeout=600", "-max_len=1048576"]
    flags += ["-verbosity=0", "-len_control=0", "-detect_leaks=0"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one, custom_mutator=damage)
    atheris.Fuzz()


def _instrument(thing: types.ModuleType | type) -> None:
    """All functions of a module, and of its classes."""
    import atheris

    home = thing.__name__ if isinstance(thing, types.ModuleType) else thing.__module__
    for value in list(vars(thing).values()):
        if getattr(value, "__module__", None) != home:
            continue
        if isinstance(value, types.FunctionType):
            atheris.instrument_func(value)
        elif isinstance(thing, types.ModuleType) and isinstance(value, type):
            _instrument(value)
