"""What the studio answers to, and what its page may ask for: this machine, and nothing else."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from golddiff.system.errors import ArgumentError
from golddiff.system.files import trim

# The browser itself then refuses to ask any other host for anything.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "object-src 'none'",
    )
)
_HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
# What the page posts, and how many bytes; gradio answers to more, which is not asked for here.
# Of an upload twice what it may have: a little too much gets a message that says so.
UPLOAD = "/gradio_api/upload"
POSTS = {
    UPLOAD: 80_000_000,
    "/gradio_api/queue/join": 2_000_000,
    "/gradio_api/cancel": 10_000,
    "/gradio_api/reset": 10_000,
}
# Of files on disk, and of requests that are on their way.
MOST_BYTES = 400_000_000


def keep_files_local(components: Iterable[Any]) -> None:
    """Let no control take a file from another host, which gradio would fetch; changed in place."""
    for component in components:
        fetch = getattr(component, "async_move_resource_to_block_cache", None)
        if fetch is not None:
            component.async_move_resource_to_block_cache = partial(_local_only, fetch)


async def _local_only(fetch: Callable[[Any], Awaitable[Any]], path: Any) -> Any:
    if "://" in str(path):
        raise ArgumentError("upload: got an address, expected a file of this computer")
    return await fetch(path)


def is_loopback(host: str) -> bool:
    """Whether an address or name means this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class OnlyThisPage:
    """ASGI middleware: who may ask for what, and the content policy on every answer.

    A page elsewhere can send this one requests, though it cannot read the answers: so nothing is
    taken that changes something, unless this page sent it.

    Args:
        app: what answers.
        local: refuse requests that name another host. A page elsewhere whose name was pointed at
            127.0.0.1 would otherwise be taken for this one by the browser.
        folder: where uploads and pictures of runs are; the oldest make room for new ones.
    """

    def __init__(self, app: ASGIApp, local: bool, folder: Path) -> None:
        self.app, self.local, self.folder = app, local, folder
        self._coming = 0  # bytes of requests that are on their way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._refused(scope, headers)
        if refused is not None:
            status, text = refused
            await PlainTextResponse(f"{text}\n", status)(scope, receive, send)
            return
        with self._room(scope, headers):
            await self.app(scope, receive, partial(_with_policy, send))

    def _refused(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """The status and the reason, or None."""
        host = headers.get("host", "")
        try:
            name = urlsplit(f"//{host}").hostname
            sender = urlsplit(headers.get("origin", f"//{host}")).netloc
        except ValueError:
            return 400, "A host or an origin is no address."
        if self.local and not is_loopback(name or ""):
            return 403, (
                "The studio answers on this machine only: open it as http://127.0.0.1 or localhost."
            )
        if scope["method"] in ("GET", "HEAD"):
            return None
        most = POSTS.get(scope["path"].rstrip("/"))
        if scope["method"] != "POST" or most is None:
            return 404, "Nothing here takes that."
        site = headers.get("sec-fetch-site", "same-origin")
        if site not in ("same-origin", "none") or sender != host:
            return 403, "Only the studio's own page may send anything."
        size = headers.get("content-length", "")
        if not (size.isascii() and size.isdigit()):
            return 411, "A request needs its length."
        if int(size) > most:
            return 413, f"The request has {int(size):,} bytes, expected at most {most:,}."
        if self._coming + int(size) > MOST_BYTES:
            return 503, "Too much is being uploaded; try again soon."
        return None

    @contextmanager
    def _room(self, scope: Scope, headers: Headers) -> Iterator[None]:
        size = int(headers["content-length"]) if scope["method"] == "POST" else 0
        self._coming += size
        try:
            if scope["method"] == "POST":
                trim(self.folder, MOST_BYTES - size)
            yield
        finally:
            self._coming -= size


async def _with_policy(send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        MutableHeaders(scope=message).update(_HEADERS)
    await send(message)
