"""Restrict the requests that the studio accepts, and the hosts that its page may contact."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from golddiff.system.errors import ArgumentError
from golddiff.system.files import trim

# Content security policy: the browser blocks requests of the page to any other host.
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
# Paths that the page posts to, with the largest body; gradio's other endpoints are blocked.
# Uploads get twice their real limit, so that slightly larger files get a readable message.
UPLOAD = "/gradio_api/upload"
POSTS = {
    UPLOAD: 80_000_000,
    "/gradio_api/queue/join": 2_000_000,
    "/gradio_api/cancel": 10_000,
    "/gradio_api/reset": 10_000,
}
# Limit for files on disk, and for requests in flight
MAX_BYTES = 400_000_000


def keep_files_local(components: Iterable[Any]) -> None:
    """Patch components in place to reject URLs as files, which gradio would download."""
    for component in components:
        fetch = getattr(component, "async_move_resource_to_block_cache", None)
        if fetch is not None:
            component.async_move_resource_to_block_cache = partial(_local_only, fetch)


async def _local_only(fetch: Callable[[Any], Awaitable[Any]], path: Any) -> Any:
    if "://" in str(path):
        raise ArgumentError("upload: got a URL, expected a file on this computer")
    return await fetch(path)


def is_loopback(host: str) -> bool:
    """Whether an address or host name is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class OnlyThisPage:
    """ASGI middleware that filters requests and adds the content policy to every response.

    Any website can send requests to this server, though it cannot read the responses. So requests
    that may change something are accepted only from the studio's own page.

    Args:
        app: the wrapped application.
        local: reject requests for another host name, which prevents DNS rebinding (another site
            resolves its name to 127.0.0.1 and then counts as the same origin).
        folder: folder of uploads and pictures of runs; the oldest are deleted to limit its size.
    """

    def __init__(self, app: ASGIApp, local: bool, folder: Path) -> None:
        self.app, self.local, self.folder = app, local, folder
        self._in_flight = 0  # bytes of requests in flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        rejection = self._rejection(scope, headers)
        if rejection is not None:
            status, text = rejection
            await PlainTextResponse(f"{text}\n", status)(scope, receive, send)
            return
        size = int(headers["content-length"]) if scope["method"] == "POST" else 0
        self._in_flight += size
        try:
            if scope["method"] == "POST":
                trim(self.folder, MAX_BYTES - size)  # makes room for it
            await self.app(scope, receive, partial(_with_policy, send))
        finally:
            self._in_flight -= size

    def _rejection(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Status and reason if the request is rejected, else None."""
        host = headers.get("host", "")
        try:
            name = urlsplit(f"//{host}").hostname
            sender = urlsplit(headers.get("origin", f"//{host}")).netloc
        except ValueError:
            return 400, "The host or origin is not a valid address."
        if self.local and not is_loopback(name or ""):
            return 403, (
                "The studio is for this machine only: open it as http://127.0.0.1 or localhost."
            )
        if scope["method"] in ("GET", "HEAD"):
            return None
        most = POSTS.get(scope["path"].rstrip("/"))
        if scope["method"] != "POST" or most is None:
            return 404, "Not found."
        site = headers.get("sec-fetch-site", "same-origin")
        if site not in ("same-origin", "none") or sender != host:
            return 403, "Only the studio's own page may send requests."
        size = headers.get("content-length", "")
        # Parts of a chunked request count, whatever length it gives.
        if "transfer-encoding" in headers or not (size.isascii() and size.isdigit()):
            return 411, "The request needs a content-length."
        if int(size) > most:
            return 413, f"The request has {int(size):,} bytes, expected at most {most:,}."
        if self._in_flight + int(size) > MAX_BYTES:
            return 503, "Too many uploads at once; try again soon."
        return None


async def _with_policy(send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        headers = MutableHeaders(scope=message)
        for name in {name for name in headers if name.startswith("access-control-")}:
            del headers[name]  # gradio lets pages of other servers on this machine read responses
        headers.update(_HEADERS)
    await send(message)
