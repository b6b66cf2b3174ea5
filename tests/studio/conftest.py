"""Fixtures: a running studio, and a browser window that shows it."""

import importlib.util
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.studio.browser import CHROMIUM, DRIVER, PATIENCE, Browser, driver, free_port, wait

# Log every host name that the server looks up and every address it connects to.
_LOGGED = """
import socket, sys
log = open(sys.argv.pop(1), "a", buffering=1)
look_up, connect = socket.getaddrinfo, socket.socket.connect
def logged_look_up(host, *rest, **options):
    print(host, file=log)
    return look_up(host, *rest, **options)
def logged_connect(self, address):
    print(address[0] if isinstance(address, tuple) else "unix", file=log)
    return connect(self, address)
socket.getaddrinfo, socket.socket.connect = logged_look_up, logged_connect
from golddiff.cli import main
main()
"""


class Studio:
    """A studio process that runs the code ``first`` before the command.

    Attributes:
        url: address of the page.
        seconds: time from the start of the process until the page answers.
    """

    def __init__(self, folder, *options, first=""):
        self.contacts = folder / "contacts.txt"
        self.output = folder / "output.txt"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        root = Path(__file__).resolve().parents[2]
        start = time.monotonic()
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-c", first + _LOGGED, str(self.contacts)),
                    *("studio", "--no-browser"),
                    *("--port", str(self.port), *options),
                ],
                env={**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(folder)},
                stdout=output, stderr=subprocess.STDOUT, cwd=folder,
            )  # fmt: skip
        wait(self._answers, 60, "the page to answer")
        self.seconds = time.monotonic() - start

    def _answers(self):
        assert self.process.poll() is None, self.output.read_text()
        return urllib.request.urlopen(self.url).status == 200

    def hosts_contacted(self):
        """Hosts that the server process looked up or connected to."""
        return set(self.contacts.read_text().split())

    def check_end(self):
        """Wait for the process; it ends without errors and leaves no files."""
        assert self.process.wait(10 * PATIENCE) == 0
        output = self.output.read_text()
        assert "ERROR" not in output
        assert output.splitlines()[-1] == "stopped"
        assert not list(self.output.parent.glob("golddiff-studio-*"))


@pytest.fixture(scope="session")
def studio_stores(tmp_path_factory):
    """Folder of two stores: digits, and colours, which a test may delete."""
    import torch

    from golddiff.store.images import ImageStore

    folder = tmp_path_factory.mktemp("studio-stores")
    ImageStore.build("digits", folder / "digits")
    coarse = torch.rand(60, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    images = torch.nn.functional.interpolate(coarse, (16, 16), mode="bilinear")
    ImageStore.build((images * 255).to(torch.uint8), folder / "colours")
    return folder


@pytest.fixture(scope="session")
def studio(tmp_path_factory, studio_stores):
    if importlib.util.find_spec("gradio") is None:
        pytest.skip("needs gradio: pip install 'golddiff[studio]'")
    running = Studio(
        tmp_path_factory.mktemp("studio"), "--store", str(studio_stores / "digits"),
        "--store", str(studio_stores / "colours"),
    )  # fmt: skip
    yield running
    running.process.terminate()
    running.check_end()


@pytest.fixture(scope="session")
def chromedriver(studio):
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs chromium and chromedriver on the path")
    with driver() as address:
        yield address


@pytest.fixture(scope="session")
def window(chromedriver):
    opened = Browser(chromedriver)
    yield opened
    opened.close()


@pytest.fixture
def browser(request, studio, window):
    """A window with the studio's page, freshly loaded."""
    window.open(studio.url)
    window.element("#generate")
    wait(lambda: "images" in window.text("#about"), 15, "the page to fill")
    yield window
    if folder := os.environ.get("GOLDDIFF_SCREENSHOTS"):
        window.screenshot(Path(folder) / f"end-of-{request.node.name}.png")
    assert window.hosts() <= {"127.0.0.1"}
