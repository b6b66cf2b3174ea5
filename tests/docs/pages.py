"""The documentation's pages, with their Python examples and sentences."""

import re
from pathlib import Path

from golddiff.estimators import registry

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

PAGES = [
    ROOT / "README.md",
    *(path for path in sorted(DOCS.rglob("*.md")) if not path.name.endswith(".notes.md")),
]

_EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```.*?^```$|<!--.*?-->", re.MULTILINE | re.DOTALL)
# Tables, headings, formulas.
_LINE = re.compile(r"^(?:\||#|:::).*$|^ {4}(?! ).*[=(].*$", re.MULTILINE)
_MARK = re.compile(r"!\[[^]]*\]\([^)]*\)|^\s*(?:[-*]|\d+\.|!!! \w+) ?|^ {4}", re.MULTILINE)


def name_of(page):
    """A page's path within the repository, used as a test id."""
    return str(page.relative_to(ROOT))


def examples(page):
    """The Python blocks of a page, padded with empty lines so that errors show the page's lines."""
    text = page.read_text(encoding="utf-8")
    return [
        "\n" * text.count("\n", 0, match.start(1)) + match[1] for match in _EXAMPLE.finditer(text)
    ]


def run(page, folder, monkeypatch):
    """Run a page's Python blocks in order, in a folder; returns the names that they define."""
    monkeypatch.chdir(folder)
    for methods in ("METHODS", "SHOWN"):  # undo what an example registers
        monkeypatch.setattr(registry, methods, dict(getattr(registry, methods)))
    namespace = {"__name__": "example"}
    for example in examples(page):
        exec(compile(example, str(page), "exec"), namespace)
    return namespace


def sentences(text):
    """The sentences of a page as lists of words, without code, tables, headings and pictures."""
    for pattern in (_BLOCK, _LINE, _MARK):
        text = pattern.sub("\n\n", text)
    prose = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", text))
    split = []
    for paragraph in re.split(r"\n\s*\n", prose):
        for sentence in re.split(r"(?<=[.!?])[*_)\"]*\s+(?=[\"*_(\[A-Z`0-9a-z])", paragraph):
            words = [w for w in sentence.split() if re.search(r"\w", w)]
            if words:
                split.append(words)
    return split
