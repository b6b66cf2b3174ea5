"""The API reference says what the docstrings say."""

import importlib.util

import golddiff
from tests.docs.pages import DOCS


def _make_api():
    spec = importlib.util.spec_from_file_location("make_api", DOCS / "make_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date():
    written = (DOCS / "api.md").read_text(encoding="utf-8")
    assert written == _make_api().render(), "run: python docs/make_api.py"


def test_every_public_name_is_on_the_page():
    listed = [name for names in _make_api().GROUPS.values() for name in names]
    modules = {"metrics", "diffusers", "cluster", "errors"}
    missing = set(golddiff.__all__) - set(listed)
    assert not [name for name in missing if not name.endswith("Error")]
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    for name in set(golddiff.__all__) - modules:
        assert f"### {name}\n" in page, name
