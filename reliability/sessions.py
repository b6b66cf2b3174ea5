"""``python -m reliability.sessions``: a studio under many sessions, hostile requests among them.

Each session generates, draws and sends what no page would send, over and over. What must hold:
every request is answered, the server neither ends nor fails, and its memory stays below a limit.
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

from golddiff_lab.tables import markdown_table

ANSWER = 120.0  # seconds that an answer may take, with so many asking
LIMIT = 2_000_000_000  # bytes resident
JSON = {"content-type": "application/json"}
FORM = {"content-type": "multipart/form-data; boundary=b"}


class Page:
    """One session with a studio, as its page has one, and as a stranger's program would.

    Args:
        port: of the studio, on this machine.
        rng: decides what is sent.
    """

    def __init__(self, port: int, rng: random.Random) -> None:
        self.port, self.rng, self.hash = port, rng, f"{rng.getrandbits(64):x}"
        config = json.loads(self.ask("GET", "/config")[1])
        self.parts = {part["id"]: part for part in config["components"]}
        self.calls = {call["api_name"]: call for call in config["dependencies"]}

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER)
        try:
            connection.request(method, path, body or None, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def call(self, name: str, **changes: Any) -> str:
        """Have the page's function called with what its controls show but for some, by label."""
        call = self.calls[name]
        values = []
        for place in call["inputs"]:
            props = self.parts[place]["props"]
            values.append(changes.get(props.get("label") or "", props.get("value")))
        return self._joined({"data": values, "fn_index": call["id"]})

    def _joined(self, body: dict[str, Any]) -> str:
        text = json.dumps({**body, "session_hash": self.hash}).encode()
        status, _ = self.ask("POST", "/gradio_api/queue/join", text, JSON)
        if status != 200:
            return f"HTTP {status}"
        path = f"/gradio_api/queue/data?session_hash={self.hash}"
        lines = self.ask("GET", path)[1].decode("utf-8", "replace").splitlines()
        ended = [json.loads(line[5:]) for line in lines if '"process_completed"' in line]
        if not ended:
            return "no end"
        return "done" if ended[-1].get("success") else "told"

    def status(self, *request: Any) -> str:
        """The status of an answer, in words."""
        return f"HTTP {self.ask(*request)[0]}"


def generate(page: Page) -> str:
    """A run of a few steps."""
    rng = page.rng
    return page.call("generate", Steps=rng.randint(2, 6), Images=rng.randint(1, 2),
                     Seed=rng.randrange(1000))  # fmt: skip


def training_image(page: Page) -> str:
    """An image of the store as the start."""
    return page.call("training_image", **{"Number in the store": page.rng.randrange(1797)})


def absurd_settings(page: Page) -> str:
    """Numbers that no control gives."""
    odd = page.rng.choice((10**9, -1, 1e308, "x", None, [1] * 1000, {"a": 1}, 2**70))
    return page.call("generate", **{page.rng.choice(("Steps", "Images", "Seed", "Methods")): odd})


def drawing_bomb(page: Page) -> str:
    """A PNG of 20 kB that would be 10 GB of pixels, as a drawing."""
    side = 50_000
    rows = zlib.compress(bytes(2_000_000), 9)
    head = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b"")):
        sealed = struct.pack(">I", zlib.crc32(kind + body))
        data += struct.pack(">I", len(body)) + kind + body + sealed
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return page._joined({"data": ["digits", url], "fn_index": page.calls["draw"]["id"]})


def postscript(page: Page) -> str:
    """A program, as a drawing."""
    url = "data:image/png;base64," + base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n").decode()
    return page._joined({"data": ["digits", url], "fn_index": page.calls["draw"]["id"]})


def file_of_the_machine(page: Page) -> str:
    """A file that was never uploaded, as an upload."""
    file = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
    return page._joined({"data": ["digits", file], "fn_index": page.calls["upload"]["id"]})


def large_upload(page: Page) -> str:
    """As much as an upload may have, and it is no image."""
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="x"\r\n\r\n'
    return page.status("POST", "/gradio_api/upload", head + bytes(70_000_000) + b"\r\n--b--", FORM)


def too_large_upload(page: Page) -> str:
    """A length beyond what is taken; nothing of it is sent."""
    headers = {**FORM, "content-length": "9000000000"}
    return page.status("POST", "/gradio_api/upload", b"", headers)


def foreign_form(page: Page) -> str:
    """What a page elsewhere can have a browser send."""
    path = page.rng.choice(("upload", "component_server", "queue/join"))
    headers = {**FORM, "origin": "https://evil.example"}
    return page.status("POST", f"/gradio_api/{path}", b"--b--", headers)


def foreign_host(page: Page) -> str:
    """A name that was pointed at this machine."""
    return page.status("GET", "/", b"", {"host": "studio.example"})


def stray_path(page: Page) -> str:
    """Files that are not the studio's."""
    path = page.rng.choice(("file=/etc/passwd", "file=../../etc/passwd", "stream/x/y/z", "%00"))
    return page.status("GET", f"/gradio_api/{path}")


def broken_request(page: Page) -> str:
    """JSON that is none, or that asks for what is not there."""
    body = page.rng.choice((b"{", b"[" * 100_000, b'{"fn_index": 9999, "data": []}', b"\xff\xfe"))
    return page.status("POST", "/gradio_api/queue/join", body, JSON)


def slow_request(page: Page) -> str:
    """A request that begins and does not go on."""
    with socket.create_connection(("127.0.0.1", page.port), timeout=ANSWER) as line:
        line.sendall(b"POST /gradio_api/queue/join HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        time.sleep(2)
    return "left"


PLAIN = (generate, generate, generate, training_image)
HOSTILE: tuple[Callable[[Page], str], ...] = (
    absurd_settings, drawing_bomb, postscript, file_of_the_machine, large_upload,
    too_large_upload, foreign_form, foreign_host, stray_path, broken_request, slow_request,
)  # fmt: skip


class Load:
    """All sessions, and what came of their requests.

    Args:
        port: of the studio.
        sessions: how many at once.
        hostile: share of the requests that no page would send.
        seed: of what is sent.
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
        """Ask for so long, and wait for the last answers."""
        self._end = time.monotonic() + seconds
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(seconds + 2 * ANSWER)

    def _session(self, rng: random.Random) -> None:
        page: Page | None = None
        while time.monotonic() < self._end:
            kind = rng.choice(HOSTILE if rng.random() < self.hostile else PLAIN)
            start = time.monotonic()
            try:
                page = page or Page(self.port, rng)
                outcome = kind(page)
            except (BrokenPipeError, ConnectionResetError):
                outcome = "cut off"  # an answer before all was sent
            except (OSError, http.client.HTTPException, ValueError) as error:
                outcome = f"no answer ({type(error).__name__})"
            with self._lock:
                self.outcomes[kind.__name__, outcome] += 1
                taken = time.monotonic() - start
                self.slowest[kind.__name__] = max(taken, self.slowest.get(kind.__name__, 0.0))

    def failures(self) -> dict[str, int]:
        """Requests without an answer, failed by the server, or plain ones that were not done."""
        plain = {kind.__name__ for kind in PLAIN}
        return {
            f"{kind}: {outcome}": count
            for (kind, outcome), count in self.outcomes.items()
            if (outcome.startswith(("no ", "HTTP 5")) and outcome != "HTTP 503")
            or (kind in plain and outcome != "done")
        }


def peak_bytes(process: int) -> int:
    """The most memory that a process has had resident."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def started(port: int, log: Path) -> subprocess.Popen[bytes]:
    """A studio over the built-in digits that answers; what it says goes into a file."""
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "golddiff", "studio", "--no-browser", "--port", str(port),
             "--data", "digits"],
            stdout=said, stderr=subprocess.STDOUT,
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
    """Arguments: how many sessions, how long. 1: something went unanswered or took too much."""
    parser = argparse.ArgumentParser(prog="python -m reliability.sessions", description=__doc__)
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--hostile", type=float, default=0.3, help="share of the requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("sessions.json"))
    asked = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = started(port, asked.out.with_suffix(".log"))
    try:
        before = peak_bytes(process.pid)
        load = Load(port, asked.sessions, asked.hostile, asked.seed)
        load.run(60 * asked.minutes)
        peak, ended = peak_bytes(process.pid), process.poll()
        answers = Page(port, random.Random(1)).status("GET", "/") == "HTTP 200"
    finally:
        process.terminate()
        process.wait(60)
    failures = load.failures()
    told = {
        "sessions": asked.sessions, "minutes": asked.minutes, "bytes_before": before,
        "bytes_peak": peak, "answers_afterwards": answers and ended is None, "failures": failures,
        "outcomes": {f"{k}: {o}": count for (k, o), count in sorted(load.outcomes.items())},
        "slowest_seconds": load.slowest,
    }  # fmt: skip
    asked.out.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    rows = []
    for kind in dict.fromkeys(kind.__name__ for kind in (*PLAIN, *HOSTILE)):
        each = [f"{count:,} {o}" for (k, o), count in sorted(load.outcomes.items()) if k == kind]
        rows.append([kind, ", ".join(each), f"{load.slowest.get(kind, 0.0):.1f} s"])
    print("\n".join(markdown_table(["request", "answers", "slowest"], rows, left=2)))
    print(f"{sum(load.outcomes.values()):,} requests; resident at most {peak / 1e9:.2f} GB "
          f"({before / 1e9:.2f} before); {sum(failures.values())} failures")  # fmt: skip
    return 1 if failures or peak > LIMIT or not told["answers_afterwards"] else 0


if __name__ == "__main__":
    sys.exit(main())
