"""The pages of the documentation, and what is in them."""

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
    """A page as the tests call it."""
    return str(page.relative_to(ROOT))


def examples(page):
    """The Python blocks of a page, each moved to its own line so that errors tell where it is."""
    text = page.read_text(encoding="utf-8")
    return [
        "\n" * text.count("\n", 0, match.start(1)) + match[1] for match in _EXAMPLE.finditer(text)
    ]


def run(page, folder, monkeypatch):
    """Run a page's Python blocks in order, in a folder; what they define."""
    monkeypatch.chdir(folder)
    for methods in ("METHODS", "SHOWN"):  # methods that an example adds stay its own
        monkeypatch.setattr(registry, methods, dict(getattr(registry, methods)))
    namespace = {"__name__": "example"}
    for example in examples(page):
        exec(compile(example, str(page), "exec"), namespace)
    return namespace


def sentences(text):
    """The sentences of a page's prose as lists of words: no code, tables, headings or pictures."""
    for left_out in (_BLOCK, _LINE, _MARK):
        text = left_out.sub("\n\n", text)
    prose = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", text))
    found = []
    for paragraph in re.split(r"\n\s*\n", prose):
        for sentence in re.split(r"(?<=[.!?])[*_)\"]*\s+(?=[\"*_(\[A-Z`0-9a-z])", paragraph):
            words = [w for w in sentence.split() if re.search(r"\w", w)]
            if words:
                found.append(words)
    return found
