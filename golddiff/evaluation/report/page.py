"""A page with everything in it: no scripts, no other files, no requests."""

from __future__ import annotations

import html
from importlib import resources
from pathlib import Path
from string import Template

from golddiff.system.files import written_whole


def write_page(
    target: Path, title: str, subtitle: str, passed: bool, verdict: str, body: str
) -> None:
    """Write a page, whole or not at all.

    Args:
        target: its path.
        title: plain text.
        subtitle: plain text.
        passed: whether the verdict is a good one.
        verdict: HTML.
        body: HTML under the verdict.

    Raises:
        ArgumentError: it cannot be written.
    """
    page = Template((resources.files("golddiff") / "data" / "report.html").read_text("utf-8"))
    text = page.substitute(
        title=html.escape(title),
        subtitle=html.escape(subtitle),
        verdict_class="pass" if passed else "fail",
        verdict=verdict,
        body=body,
    )
    with written_whole("path", target) as temporary:
        temporary.write_text(text, encoding="utf-8")
