"""Inputs guided by coverage: atheris (libFuzzer) keeps those that reach new code of a reader."""

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

# Packages instrumented at import.
PACKAGES = ("golddiff", "PIL")
# Modules that are already imported, instrumented in place.
IMPORTED = ("zipfile", "tarfile", "gzip", "pickletools", "numpy.lib._format_impl")


def instrument() -> None:
    """Instrument readers that are already imported or imported later."""
    import atheris

    import golddiff.kernels

    # Numba cannot compile instrumented code.
    kernels = pkgutil.walk_packages(golddiff.kernels.__path__, "golddiff.kernels.")
    atheris.instrument_imports(PACKAGES, [module.name for module in kernels]).__enter__()
    for module in IMPORTED:
        _instrument(importlib.import_module(module))


def run_guided(examiner: Examiner, inputs: int, seed: int, report: Report, scratch: Path) -> None:
    """Run a reader on inputs chosen by coverage, then exit the process."""
    import atheris

    target = examiner.target
    corpus = scratch / "corpus"
    corpus.mkdir()
    for i, data in enumerate(examiner.seeds):
        (corpus / f"seed{i}").write_bytes(data)
    others = list(examiner.seeds)

    def examine(data: bytes) -> None:
        if not target.general and not data.startswith(b"{"):
            return  # libFuzzer starts with an empty input, not a bundle of files
        report.examine(examiner, data)
        if report.tally.inputs >= inputs:
            report.write()
            shutil.rmtree(scratch, ignore_errors=True)
            # libFuzzer would write a report of its own.
            os._exit(0)

    def damage(data: bytes, max_bytes: int, mutation_seed: int) -> bytes:
        rng = random.Random(mutation_seed)
        if target.general and rng.random() < 0.3:
            return bytes(atheris.Mutate(data, max_bytes))
        return target.damage(rng, data, others)[:max_bytes]

    flags = [f"-seed={seed + 1}", "-rss_limit_mb=0", "-timeout=600", "-max_len=1048576"]
    flags += ["-verbosity=0", "-len_control=0", "-detect_leaks=0"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], examine, custom_mutator=damage)
    atheris.Fuzz()


def _instrument(owner: types.ModuleType | type) -> None:
    """Instrument all functions of a module or class, and those of classes in it."""
    import atheris

    module = owner.__name__ if isinstance(owner, types.ModuleType) else owner.__module__
    for value in list(vars(owner).values()):
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, types.FunctionType):
            atheris.instrument_func(value)
        elif isinstance(owner, types.ModuleType) and isinstance(value, type):
            _instrument(value)
