"""Every Python example in the documentation runs unchanged."""

import pytest

from tests.docs.pages import PAGES, examples, name_of, run


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("page", [p for p in PAGES if examples(p)], ids=name_of)
def test_the_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch, request):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if page.stem == "cluster":
        ray = pytest.importorskip("ray", reason="needs Ray: pip install 'golddiff[cluster]'")
        request.addfinalizer(ray.shutdown)
    run(page, tmp_path, monkeypatch)
