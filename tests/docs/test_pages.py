"""Limits on every page: the length of sentences, the size, and how a guide begins."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, name_of, sentences

GUIDES = sorted((DOCS / "guides").glob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MAX_MEAN_WORDS = 18
MAX_WORDS = 800
MAX_BYTES = 40_000


def test_prose_is_split_into_sentences():
    text = "# No\n\nOne two. Three four five!\n\n- Six\n- seven `a.b` eight\n\n"
    text += "```py\nx. Y z\n```\n| a | b |\n"
    assert [len(s) for s in sentences(text)] == [2, 3, 1, 3]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_sentences_are_short(page):
    prose = sentences(page.read_text(encoding="utf-8"))
    mean = sum(map(len, prose)) / max(len(prose), 1)
    longest = sorted(prose, key=len)[-3:]
    shown = "\n".join(" ".join(words) for words in longest)
    assert mean < MAX_MEAN_WORDS, f"{mean:.1f} words a sentence; the longest:\n{shown}"


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_a_guide_is_short_and_begins_with_a_code_block(page):
    title, _, body = page.read_text(encoding="utf-8").partition("\n")
    assert title.startswith("# ")
    assert re.match(r"\s*```(sh|console|python)\n", body)
    assert len(body.split()) < MAX_WORDS


def test_a_concept_page_has_one_figure():
    for page in (DOCS / "concepts").glob("*.md"):
        assert page.read_text(encoding="utf-8").count("![") == 1, page.name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_are_smaller_than_40_kilobytes(page):
    assert page.stat().st_size < MAX_BYTES


def test_the_readme_is_short_and_its_absolute_links_lead_to_existing_files():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert all(target.startswith("https://") for target in targets)
    blob = "https://raw.githubusercontent.com/golddiff/golddiff/main/"
    for target in targets:
        path = target.removeprefix(blob)
        path = re.sub(r"^https://github.com/golddiff/golddiff/(blob|tree)/main/", "", path)
        path = re.sub(r"^https://golddiff.github.io/golddiff/(.*)\.html$", r"docs/\1.md", path)
        path = path.replace("https://golddiff.github.io/golddiff/", "docs/index.md")
        assert (ROOT / path).exists(), target


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_runs(example, tmp_path, monkeypatch, capsys):
    assert len(example.read_text(encoding="utf-8").splitlines()) < 40
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_there_are_six_examples():
    assert len(EXAMPLES) == 6


def test_the_version_is_the_same_everywhere():
    import golddiff

    version = golddiff.__version__
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_relative_links_outside_the_docs_lead_to_existing_files():
    for page in (*ROOT.glob("*.md"), ROOT / "oracles" / "README.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert "://" in target or (page.parent / Path(target)).exists(), f"{page}: {target}"
