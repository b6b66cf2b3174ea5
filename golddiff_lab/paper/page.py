"""The output of an experiment: a Markdown page, JSON and pictures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from golddiff import __version__
from golddiff.cli.terminal import write_json
from golddiff.figures.curves import Panel, draw_panels
from golddiff.system.files import atomic_write
from golddiff.system.pictures import save


@dataclass
class Page:
    """The results of one experiment.

    Attributes:
        lines: Markdown below the title.
        rows: all numbers of the tables, for JSON.
        panels: line plots, drawn together as ``<name>.png``.
        pictures: other pictures, by file name without suffix.
    """

    lines: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    pictures: dict[str, Any] = field(default_factory=dict)

    def write(self, out: Path, name: str, title: str, source: str, *, quick: bool) -> list[Path]:
        """Write ``<name>.md``, ``<name>.json`` and the pictures into ``out``; return their paths.

        The page names the ``source`` in the paper, and says if it was a trial run (``quick``).
        """
        pictures = dict(self.pictures)
        if self.panels:
            pictures[name] = draw_panels(self.panels)
        for stem, picture in pictures.items():
            save("out", picture, out / f"{stem}.png")
        lines = [f"## {title}", "", f"Paper: {source}. `golddiff reproduce {name}`", ""]
        if quick:
            lines += ["**A trial run (`--quick`): a few images and steps. No result.**", ""]
        lines += self.lines
        # The picture with the experiment's name comes first.
        for stem in sorted(pictures, key=lambda stem: (stem != name, stem)):
            lines += ["", f"![{title}]({stem}.png)"]
        body = {
            "golddiff": __version__,
            "kind": "experiment",
            "name": name,
            "title": title,
            "quick": quick,
            "rows": self.rows,
            "panels": [asdict(panel) for panel in self.panels],
        }
        page, record = out / f"{name}.md", out / f"{name}.json"
        with atomic_write("out", page) as temporary:
            temporary.write_text("\n".join(lines).rstrip() + "\n", "utf-8")
        write_json(record, body, "out")
        return [page, record, *(out / f"{stem}.png" for stem in pictures)]
