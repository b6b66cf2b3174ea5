"""The site builds, documents every public name, and loads no external resource."""

import functools
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

import golddiff
from tests.docs.pages import DOCS, ROOT

pytest.importorskip("mkdocs", reason="needs mkdocs: pip install -c constraints.txt -e '.[docs]'")

MAX_BYTES = 40_000  # of a page's text


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


@functools.cache
class Page(HTMLParser):
    """The addresses that a page loads, its anchors, and its text."""

    def __init__(self, path):
        super().__init__()
        self.loaded, self.anchors, self.text = [], set(), []
        self.article = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.article += tag == "article"
        self.anchors.add(values.get("id"))
        if tag in ("script", "img", "iframe", "source") and values.get("src"):
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loaded.append(values["href"])

    def handle_endtag(self, tag):
        self.article -= tag == "article"

    def handle_data(self, data):
        if self.article:
            self.text.append(data)


def test_every_public_name_is_in_the_reference(site):
    anchors = set()
    for page in (site / "reference").glob("*.html"):
        anchors |= Page(page).anchors
    modules = {"cluster", "diffusers", "metrics", "errors", "__version__"}
    missing = [name for name in golddiff.__all__ if name not in modules]
    missing = [name for name in missing if f"golddiff.{name}" not in anchors]
    assert not missing
    for name in ("metrics.r2", "metrics.sharpness", "cluster.connect", "diffusers.decode"):
        assert f"golddiff.{name}" in anchors


def test_the_reference_is_free_of_rest_and_describes_each_result_once(site):
    for page in (site / "reference").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"::</p>|:\w+:`|See TrainingSet|See <code>TrainingSet", text), page
        for listed in re.findall(r"Returns:</span></p>\s*<ul>(.*?)</ul>", text, re.DOTALL):
            assert listed.count("<li") == 1, page


def test_pages_load_no_external_resource(site):
    for page in site.rglob("*.html"):
        external = [address for address in Page(page).loaded if re.match(r"(https?:)?//", address)]
        assert not external, page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:", style.read_text(encoding="utf-8")), style


def test_reference_pages_are_neither_empty_nor_long(site):
    for page in (site / "reference").glob("*.html"):
        text = re.sub(r"\s+", " ", "".join(Page(page).text))
        assert 100 < len(text.encode()) < MAX_BYTES, page.name


def test_the_search_index_is_a_local_file_that_covers_every_page(site):
    script = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    index = json.loads(script[script.index("{") :].rstrip().removesuffix(";"))
    indexed = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"guides/photographs.html", "concepts/novelty.html", "glossary.html"} <= indexed
    pages = [p for p in DOCS.rglob("*.md") if not p.name.endswith(".notes.md")]
    assert len(indexed) == len(pages)
