"""Where the documentation lies, and the examples in its pages."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"

# api.md is made from docstrings and holds signatures, not examples.
PAGES = sorted(path for path in DOCS.glob("*.md") if path.name != "api.md")

_EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page):
    """The Python blocks of a page, each moved to its own line so that errors tell where it is."""
    text = page.read_text(encoding="utf-8")
    return [
        "\n" * text.count("\n", 0, match.start(1)) + match[1] for match in _EXAMPLE.finditer(text)
    ]
