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
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    marks = {name: (f"(*golddiff.{name}*)", f"## golddiff.{name}\n") for name in golddiff.__all__}
    missing = [name for name, found in marks.items() if not any(mark in page for mark in found)]
    assert not missing, f"docs/make_api.py lists no module that holds {', '.join(missing)}"
