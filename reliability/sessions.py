"""``python -m reliability.sessions``: a studio under many sessions and hostile requests.

Each session repeats runs of the page and requests that no page sends. The studio must answer every
request, keep running, and stay below a memory limit.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from golddiff.system.markdown import markdown_table
from golddiff.system.memory import process_memory

TIMEOUT = 120.0  # seconds for an answer, under full load
LIMIT = 2_000_000_000  # resident bytes
JSON = {"content-type": "application/json"}
FORM = {"content-type": "multipart/form-data; boundary=b"}


class Page:
    """A session with a studio that sends requests of its page and of hostile programs.

    Args:
        port: port of the studio on 127.0.0.1.
        rng: chooses the contents of requests.
    """

    def __init__(self, port: int, rng: random.Random) -> None:
        self.port, self.rng, self.hash = port, rng, f"{rng.getrandbits(64):x}"
        config = json.loads(self.ask("GET", "/config")[1])
        self.parts = {part["id"]: part for part in config["components"]}
        self.calls = {call["api_name"]: call for call in config["dependencies"]}

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send a request; return the status and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            connection.request(method, path, body or None, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def call(self, name: str, **changes: Any) -> str:
        """Call a page function with the values of its controls, ``changes`` given by label."""
        call = self.calls[name]
        values = []
        for component in call["inputs"]:
            props = self.parts[component]["props"]
            values.append(changes.get(props.get("label") or "", props.get("value")))
        return self._queue({"data": values, "fn_index": call["id"]})

    def _queue(self, body: dict[str, Any]) -> str:
        text = json.dumps({**body, "session_hash": self.hash}).encode()
        status, _ = self.ask("POST", "/gradio_api/queue/join", text, JSON)
        if status != 200:
            return f"HTTP {status}"
        path = f"/gradio_api/queue/data?session_hash={self.hash}"
        lines = self.ask("GET", path)[1].decode("utf-8", "replace").splitlines()
        ends = [json.loads(line[5:]) for line in lines if '"process_completed"' in line]
        if not ends:
            return "no end"
        return "done" if ends[-1].get("success") else "told"

    def status(self, *request: Any) -> str:
        """Send a request; return 'HTTP' and the status of the answer."""
        return f"HTTP {self.ask(*request)[0]}"


def generate(page: Page) -> str:
    """A run of a few steps."""
    rng = page.rng
    return page.call("generate", Steps=rng.randint(2, 6), Images=rng.randint(1, 2),
                     Seed=rng.randrange(1000))  # fmt: skip


def training_image(page: Page) -> str:
    """A run that starts at a training image."""
    return page.call("training_image", **{"Number in the store": page.rng.randrange(1797)})


def absurd_settings(page: Page) -> str:
    """A run with a value that no control allows."""
    odd = page.rng.choice((10**9, -1, 1e308, "x", None, [1] * 1000, {"a": 1}, 2**70))
    return page.call("generate", **{page.rng.choice(("Steps", "Images", "Seed", "Methods")): odd})


def drawing_bomb(page: Page) -> str:
    """A drawing whose PNG of 2 kB declares 10 GB of pixels."""
    side = 50_000
    rows = zlib.compress(bytes(2_000_000), 9)
    head = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b"")):
        crc = struct.pack(">I", zlib.crc32(kind + body))
        data += struct.pack(">I", len(body)) + kind + body + crc
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return page._queue({"data": ["digits", url], "fn_index": page.calls["draw"]["id"]})


def postscript(page: Page) -> str:
    """A PostScript program as a drawing."""
    url = "data:image/png;base64," + base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n").decode()
    return page._queue({"data": ["digits", url], "fn_index": page.calls["draw"]["id"]})


def upload_of(page: Page, path: str) -> str:
    """An upload that names a file instead of holding it."""
    file = {"path": path, "meta": {"_type": "gradio.FileData"}}
    return page._queue({"data": ["digits", file], "fn_index": page.calls["upload"]["id"]})


def file_of_the_machine(page: Page) -> str:
    """An upload that names a file of the machine."""
    return upload_of(page, "/etc/passwd")


def large_upload(page: Page) -> str:
    """An upload just below the size limit that is not an image."""
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="x"\r\n\r\n'
    return page.status("POST", "/gradio_api/upload", head + bytes(70_000_000) + b"\r\n--b--", FORM)


def too_large_upload(page: Page) -> str:
    """An upload that declares a size above the limit; its body is not sent."""
    headers = {**FORM, "content-length": "9000000000"}
    return page.status("POST", "/gradio_api/upload", b"", headers)


def foreign_form(page: Page) -> str:
    """A form that a page of another origin can make a browser send."""
    path = page.rng.choice(("upload", "component_server", "queue/join"))
    headers = {**FORM, "origin": "https://evil.example"}
    return page.status("POST", f"/gradio_api/{path}", b"--b--", headers)


def foreign_host(page: Page) -> str:
    """A request for another host name, as in DNS rebinding."""
    return page.status("GET", "/", b"", {"host": "studio.example"})


def stray_path(page: Page) -> str:
    """A request for a file outside the studio."""
    path = page.rng.choice(("file=/etc/passwd", "file=../../etc/passwd", "stream/x/y/z", "%00"))
    return page.status("GET", f"/gradio_api/{path}")


def broken_request(page: Page) -> str:
    """Invalid JSON, or JSON that calls a missing function."""
    body = page.rng.choice((b"{", b"[" * 100_000, b'{"fn_index": 9999, "data": []}', b"\xff\xfe"))
    return page.status("POST", "/gradio_api/queue/join", body, JSON)


def slow_request(page: Page) -> str:
    """A request whose headers never end."""
    with socket.create_connection(("127.0.0.1", page.port), timeout=TIMEOUT) as line:
        line.sendall(b"POST /gradio_api/queue/join HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        time.sleep(2)
    return "left"


PLAIN = (generate, generate, generate, training_image)
HOSTILE: tuple[Callable[[Page], str], ...] = (
    absurd_settings, drawing_bomb, postscript, file_of_the_machine, large_upload,
    too_large_upload, foreign_form, foreign_host, stray_path, broken_request, slow_request,
)  # fmt: skip


class Load:
    """Concurrent sessions and counts of the outcomes of their requests.

    Args:
        port: port of the studio.
        sessions: number of concurrent sessions.
        hostile: share of hostile requests.
        seed: seed of the requests.
    """

    def __init__(self, port: int, sessions: int, hostile: float, seed: int) -> None:
        self.port, self.hostile = port, hostile
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.slowest: dict[str, float] = {}
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(
                target=self._session, args=(random.Random(f"{seed} {i}"),), daemon=True
            )
            for i in range(sessions)
        ]
        self._end = 0.0

    def run(self, seconds: float) -> None:
        """Send requests for ``seconds``, then wait for the last answers."""
        self._end = time.monotonic() + seconds
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(seconds + 2 * TIMEOUT)

    def _session(self, rng: random.Random) -> None:
        page: Page | None = None
        while time.monotonic() < self._end:
            kind = rng.choice(HOSTILE if rng.random() < self.hostile else PLAIN)
            start = time.monotonic()
            try:
                page = page or Page(self.port, rng)
                outcome = kind(page)
            except (BrokenPipeError, ConnectionResetError):
                outcome = "cut off"  # the studio answered before the request ended
            except (OSError, http.client.HTTPException, ValueError) as error:
                outcome = f"no answer ({type(error).__name__})"
            with self._lock:
                self.outcomes[kind.__name__, outcome] += 1
                taken = time.monotonic() - start
                self.slowest[kind.__name__] = max(taken, self.slowest.get(kind.__name__, 0.0))

    def failures(self) -> dict[str, int]:
        """Counts of unanswered requests, server errors, and plain requests that were not done."""
        plain = {kind.__name__ for kind in PLAIN}
        return {
            f"{kind}: {outcome}": count
            for (kind, outcome), count in self.outcomes.items()
            if (outcome.startswith(("no ", "HTTP 5")) and outcome != "HTTP 503")
            or (kind in plain and outcome != "done")
        }


def started(port: int, log: Path) -> subprocess.Popen[bytes]:
    """Start a studio over the built-in digits, logging to a file; return it once it answers."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "golddiff", "studio", "--no-browser", "--port", str(port),
             "--data", "digits"],
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and process.poll() is None:
        try:
            Page(port, random.Random(0))
            return process
        except (OSError, ValueError):
            time.sleep(0.5)
    process.kill()
    raise RuntimeError("the studio did not answer within three minutes")


def main() -> int:
    """Run the check; return 1 if it finds failures or too much memory."""
    parser = argparse.ArgumentParser(prog="python -m reliability.sessions", description=__doc__)
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--hostile", type=float, default=0.3, help="share of the requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("sessions.json"))
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = started(port, args.out.with_suffix(".log"))
    try:
        before = process_memory(process.pid)["VmHWM"]
        load = Load(port, args.sessions, args.hostile, args.seed)
        load.run(60 * args.minutes)
        peak, ended = process_memory(process.pid)["VmHWM"], process.poll()
        answers = Page(port, random.Random(1)).status("GET", "/") == "HTTP 200"
    finally:
        process.terminate()
        process.wait(60)
    failures = load.failures()
    summary = {
        "sessions": args.sessions, "minutes": args.minutes, "bytes_before": before,
        "bytes_peak": peak, "answers_afterwards": answers and ended is None, "failures": failures,
        "outcomes": {f"{k}: {o}": count for (k, o), count in sorted(load.outcomes.items())},
        "slowest_seconds": load.slowest,
    }  # fmt: skip
    args.out.write_text(json.dumps(summary, indent=1) + "\n", "utf-8")
    rows = []
    for kind in dict.fromkeys(kind.__name__ for kind in (*PLAIN, *HOSTILE)):
        counts = [f"{count:,} {o}" for (k, o), count in sorted(load.outcomes.items()) if k == kind]
        rows.append([kind, ", ".join(counts), f"{load.slowest.get(kind, 0.0):.1f} s"])
    print("\n".join(markdown_table(["request", "answers", "slowest"], rows, left=2)))
    print(f"{sum(load.outcomes.values()):,} requests; resident at most {peak / 1e9:.2f} GB "
          f"({before / 1e9:.2f} before); {sum(failures.values())} failures")  # fmt: skip
    return 1 if failures or peak > LIMIT or not summary["answers_afterwards"] else 0


if __name__ == "__main__":
    sys.exit(main())
