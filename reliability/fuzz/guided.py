"""Coverage-guided inputs: atheris (libFuzzer) keeps those that reach new code of the readers."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

# What is instrumented, besides golddiff's own readers.
READERS = (
    "golddiff.sources",
    "golddiff.manifest",
    "golddiff.index.files",
    "golddiff.kept_masks",
    "golddiff.oracles.edm",
    "golddiff.oracles.files",
    "golddiff.oracles.published",
    "golddiff.oracles.state",
    "golddiff.cluster.listing",
    "golddiff.adaptive.memory",
    "golddiff.experiments.cells",
    "zipfile",
    "tarfile",
    "gzip",
    "numpy.lib._format_impl",
    "PIL.PngImagePlugin",
    "PIL.JpegImagePlugin",
    "PIL.GifImagePlugin",
    "PIL.BmpImagePlugin",
    "PIL.TiffImagePlugin",
)


def guided(name: str, inputs: int, seed: int, out: Path, place: Path) -> None:
    """Give a reader inputs chosen by coverage; the process ends when they are done."""
    import atheris

    with atheris.instrument_imports(include=list(READERS)):
        from reliability.fuzz.campaign import target_named
        from reliability.fuzz.target import Examiner
        from reliability.fuzz.worker import Report

        target = target_named(name)
    examiner = Examiner(target, place / "input")
    report = Report(out)
    corpus = place / "corpus"
    corpus.mkdir()
    for i, data in enumerate(examiner.seeds):
        (corpus / f"seed{i}").write_bytes(data)
    others = list(examiner.seeds)

    def one(data: bytes) -> None:
        if not target.general and not data.startswith(b"{"):
            return  # libFuzzer begins with an empty input, which is no bundle of files
        report.before(data, report.tally)
        report.tally.add(examiner.examine(data), data)
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

    flags = [f"-seed={seed + 1}", "-rss_limit_mb=0", "-timeout=60", "-max_len=1048576"]
    flags += ["-verbosity=0", "-len_control=0", "-detect_leaks=0"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one, custom_mutator=damage)
    atheris.Fuzz()
