"""A headless Chromium, driven over chromedriver's WebDriver protocol with the standard library."""

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
DRIVER = shutil.which("chromedriver")
# A factor on all waiting times, for busy computers.
PATIENCE = float(os.environ.get("GOLDDIFF_PATIENCE", "1"))

# No sandbox: tests may run as root in a container. Most others disable Chromium's services.
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--force-color-profile=srgb", "--hide-scrollbars"),
]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def driver():
    """chromedriver's address while the block runs."""
    port = free_port()
    process = subprocess.Popen(
        [DRIVER, f"--port={port}", "--log-level=SEVERE"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        address = f"http://127.0.0.1:{port}"
        wait(lambda: _call("GET", f"{address}/status")["ready"], 15, "chromedriver")
        yield address
    finally:
        process.terminate()
        process.wait(10)


def wait(condition, seconds, description):
    """Poll until the condition is true, and return its value."""
    end = time.monotonic() + seconds * PATIENCE
    while True:
        with contextlib.suppress(OSError, KeyError, urllib.error.HTTPError):
            value = condition()
            if value:
                return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for {description}")
        time.sleep(0.03)


def _call(method, url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {url}: {error.read().decode()[:500]}") from None


class Browser:
    """One browser window with a fresh profile."""

    def __init__(self, address, width=1440, height=1500):
        self.profile = tempfile.mkdtemp(prefix="chromium-")
        self.downloads = Path(self.profile) / "downloads"
        self.downloads.mkdir()
        options = {
            "binary": CHROMIUM,
            "prefs": {"download.default_directory": str(self.downloads)},
            "args": [*FLAGS, f"--user-data-dir={self.profile}", f"--window-size={width},{height}"],
        }
        required = {"goog:chromeOptions": options, "goog:loggingPrefs": {"performance": "ALL"}}
        session = _call("POST", f"{address}/session", {"capabilities": {"alwaysMatch": required}})
        self.base = f"{address}/session/{session['sessionId']}"
        self.requests = []

    def close(self):
        _call("DELETE", self.base)
        shutil.rmtree(self.profile, ignore_errors=True)

    def open(self, url):
        _call("POST", f"{self.base}/url", {"url": url})

    def js(self, script, *args):
        return _call("POST", f"{self.base}/execute/sync", {"script": script, "args": list(args)})

    def element(self, selector):
        elements = wait(lambda: self._find(selector), 15, selector)
        return f"{self.base}/element/{next(iter(elements[0].values()))}"

    def click(self, selector):
        _call("POST", f"{self.element(selector)}/click", {})

    def type(self, selector, text):
        _call("POST", f"{self.element(selector)}/value", {"text": text})

    def click_at(self, selector, x, y):
        """Click a point of an element, as fractions of its width and height."""
        box = self.js(
            "const e=document.querySelector(arguments[0]); e.scrollIntoView({block:'center'});"
            "const b=e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height];",
            selector,
        )
        self.pointer([(box[0] + x * box[2], box[1] + y * box[3])])

    def pointer(self, points):
        """Press at the first point, move through the others, release."""
        moves = [
            {"type": "pointerMove", "duration": 20, "x": round(x), "y": round(y)} for x, y in points
        ]
        down, up = {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}
        actions = [moves[0], down, *moves[1:], up]
        mouse = {"type": "pointer", "id": "mouse", "actions": actions}
        _call("POST", f"{self.base}/actions", {"actions": [mouse]})

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0])?.innerText || ''", selector)

    def picture(self, selector):
        """The source of an image on the page, or None until it is loaded."""
        return self.js(
            "const i=document.querySelector(arguments[0]);"
            "return i && i.complete && i.naturalWidth ? i.src : null",
            selector,
        )

    def messages(self):
        return self.js(
            "return [...document.querySelectorAll('.toast-body')].map(e => e.innerText).join('|')"
        )

    def clear_messages(self):
        self.js("document.querySelectorAll('.toast-close').forEach(e => e.click())")
        wait(lambda: not self.messages(), 5, "the messages to close")

    def screenshot(self, path):
        data = _call("GET", f"{self.base}/screenshot")
        Path(path).write_bytes(base64.b64decode(data))

    def hosts(self):
        """Every host that the browser has contacted over HTTP or WebSocket."""
        for entry in _call("POST", f"{self.base}/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            elif message["method"] == "Network.webSocketCreated":
                self.requests.append(message["params"]["url"])
        split = [urlsplit(url) for url in self.requests]
        # chrome: is the browser's own empty tab.
        return {url.hostname for url in split if url.scheme in ("http", "https", "ws", "wss")}

    def _find(self, selector):
        return _call("POST", f"{self.base}/elements", {"using": "css selector", "value": selector})
