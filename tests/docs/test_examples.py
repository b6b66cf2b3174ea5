"""Every Python example in the documentation runs as it stands."""

import re

import pytest
import torch

from tests.docs.pages import DOCS, PAGES, examples


@pytest.fixture
def threads_as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("threads_as_before")
@pytest.mark.parametrize("page", [p for p in PAGES if examples(p)], ids=lambda page: page.name)
def test_the_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if page.name == "cluster.md":
        ray = pytest.importorskip("ray", reason="needs Ray: pip install 'golddiff[cluster]'")
        request.addfinalizer(ray.shutdown)
    namespace = {"__name__": "example"}
    for example in examples(page):
        exec(compile(example, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (DOCS / target).exists(), f"{page.name} links to {target}"
