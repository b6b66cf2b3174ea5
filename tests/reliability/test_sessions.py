"""A short version of ``python -m reliability.sessions``."""

import importlib.util
import random
import socket

import pytest

from golddiff.system.memory import process_memory
from reliability.sessions import HOSTILE, Load, Page, started


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    if importlib.util.find_spec("gradio") is None:
        pytest.skip("needs gradio: pip install 'golddiff[studio]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = started(port, tmp_path_factory.mktemp("studio") / "studio.log")
    yield process, port
    process.terminate()
    process.wait(60)


@pytest.mark.parametrize("request_", HOSTILE, ids=lambda request_: request_.__name__)
def test_studio_survives_hostile_requests(studio, request_):
    process, port = studio
    page = Page(port, random.Random(1))
    outcome = request_(page)
    refusals = ("told", "HTTP 400", "HTTP 403", "HTTP 404", "HTTP 413", "HTTP 422", "done")
    others = {"large_upload": ["HTTP 200"], "slow_request": ["left"]}  # a large file is allowed
    assert outcome in others.get(request_.__name__, refusals)
    assert page.status("GET", "/") == "HTTP 200"
    assert process.poll() is None
    assert process_memory(process.pid)["VmHWM"] < 2_000_000_000


def test_unexpected_outcomes_are_failures():
    load = Load(0, 1, 0.5, 0)
    load.outcomes.update({
        ("generate", "done"): 3, ("generate", "told"): 1, ("stray_path", "HTTP 404"): 2,
        ("stray_path", "HTTP 500"): 1, ("large_upload", "HTTP 503"): 1,
        ("postscript", "no answer (TimeoutError)"): 1,
    })  # fmt: skip
    assert load.failures() == {
        "generate: told": 1, "stray_path: HTTP 500": 1, "postscript: no answer (TimeoutError)": 1,
    }  # fmt: skip
