"""Combine all finished experiments into one page, with hand-written remarks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from golddiff.system.errors import ArgumentError
from golddiff.system.files import atomic_write
from golddiff_lab.paper.registry import EXPERIMENTS

INTRODUCTION = "introduction"
CHECKSUM = "(checksum "  # of a line that says which images and network a table is of
AGAIN = "Images, network and settings as in the first table of this data set."
LONG = 150  # lines of at least this many characters count as paragraphs

HEAD = """# Results

This page shows every table and figure of the paper ("Fast and Scalable Analytical Diffusion",
ICML 2026) beside our results. `golddiff reproduce --report {page}` writes it, with the remarks
of `{notes}`: edit those, not this page.
"""


def notes_path(page: Path) -> Path:
    """Path of a page's remarks: ``results.notes.md`` for ``results.md``."""
    return page.with_name(f"{page.stem}.notes.md")


def write_report(out: Path, page: Path) -> list[str]:
    """Combine the pages in ``out`` into one, and return the names of the experiments on it.

    Pictures are copied into a folder of the page's name without suffix.

    Raises:
        ArgumentError: no experiment is finished, or a remark names an unknown experiment.
    """
    finished = [name for name in EXPERIMENTS if (out / f"{name}.md").is_file()]
    if not finished:
        raise ArgumentError(
            f"out: {out} holds no finished experiment; golddiff reproduce NAME first"
        )
    notes = read_notes(notes_path(page))
    parts = [HEAD.format(page=page.name, notes=notes_path(page).name)]
    if notes.get(INTRODUCTION):
        parts.append(notes[INTRODUCTION] + "\n")
    pictures = page.parent / page.stem
    for name in finished:
        text = (out / f"{name}.md").read_text("utf-8")
        heading, _, body = text.partition("\n")
        remark = f"\n{notes[name]}\n" if notes.get(name) else ""
        before = {line for part in parts for line in part.splitlines() if _is_note(line)}
        lines = [
            AGAIN if line in before and CHECKSUM in line else _narrow(line)
            for line in body.splitlines()
            if line not in before or CHECKSUM in line
        ]
        body = "\n".join(lines)
        linked = re.sub(r"\]\(([\w-]+\.png)\)", rf"]({page.stem}/\1)", body)
        parts.append(f"{heading}\n{remark}{linked}")
        for picture in re.findall(r"\]\(([\w-]+\.png)\)", body):
            with atomic_write("report", pictures / picture) as temporary:
                shutil.copyfile(out / picture, temporary)
    with atomic_write("report", page) as temporary:
        temporary.write_text("\n".join(parts).rstrip() + "\n", "utf-8")
    return finished


def _narrow(line: str) -> str:
    """A table line without the padding that aligns its columns."""
    return re.sub("  +", " ", re.sub("---+", "---", line)) if line.startswith("|") else line


def _is_note(line: str) -> bool:
    """Whether a line is a paragraph; one that several tables share is kept only once."""
    return len(line) >= LONG and not line.startswith("|")


def read_notes(path: Path) -> dict[str, str]:
    """The remarks, by the name in each ``## name`` heading; empty if there is no file."""
    if not path.is_file():
        return {}
    # Text before the first heading is for editors of the file.
    _, *sections = re.split(r"^## +", path.read_text("utf-8"), flags=re.MULTILINE)
    notes = {}
    for section in sections:
        name, _, text = section.partition("\n")
        if name.strip() not in {INTRODUCTION, *EXPERIMENTS}:
            raise ArgumentError(
                f"report: {path} has remarks for {name.strip()!r}, expected {INTRODUCTION} or one "
                f"of {', '.join(EXPERIMENTS)}"
            )
        notes[name.strip()] = text.strip()
    return notes
