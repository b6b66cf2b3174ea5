"""Every Python example in the documentation runs unchanged."""

import pytest
import torch

from tests.docs.pages import PAGES, examples, name_of, run


@pytest.fixture
def restored_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("page", [p for p in PAGES if examples(p)], ids=name_of)
def test_the_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch, request):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if page.stem == "cluster":
        ray = pytest.importorskip("ray", reason="needs Ray: pip install 'golddiff[cluster]'")
        request.addfinalizer(ray.shutdown)
    run(page, tmp_path, monkeypatch)
