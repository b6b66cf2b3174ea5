"""What the studio answers to, and what its page may ask for: this machine, and nothing else."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from typing import Any

from golddiff.errors import ArgumentError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

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
_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
# Files that the description of the page's interface gives as examples.
_EXAMPLES = re.compile(rb"https://[^\"\s]*/gradio-app/[^\"\s]*")
_SOCIAL = re.compile(rb"<meta\s[^>]*?(?:property=\"og:|name=\"twitter:)[^>]*>", re.S)


def keep_files_local(components: Iterable[Any]) -> None:
    """Let no control take a file from another host, which gradio would fetch by itself.

    Args:
        components: gradio's; those that can take files are changed in place.
    """
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


class OnlyThisMachine:
    """ASGI middleware: the content policy on every answer, no foreign names in requests or pages.

    Args:
        app: what answers.
        local: refuse requests that name another host. A page elsewhere whose name was pointed at
            127.0.0.1 would otherwise be taken for this one by the browser.
    """

    def __init__(self, app: App, local: bool) -> None:
        self.app = app
        self.local = local

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.local and not is_loopback(_host(scope)):
            await _refuse(send)
            return
        await self.app(scope, receive, _Page(send) if scope["path"] == "/" else _with_policy(send))


class _Page:
    """Sends the page in one piece, without the parts that name other hosts."""

    def __init__(self, send: Send) -> None:
        self.send = _with_policy(send)
        self.start: Message = {}
        self.body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            return
        self.body += message.get("body", b"")
        if message.get("more_body"):
            return
        body = _EXAMPLES.sub(b"", _SOCIAL.sub(b"", self.body))
        headers = [(k, v) for k, v in self.start["headers"] if k.lower() != b"content-length"]
        self.start["headers"] = [*headers, (b"content-length", str(len(body)).encode())]
        await self.send(self.start)
        await self.send({"type": "http.response.body", "body": body})


def _with_policy(send: Send) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_HEADERS]
        await send(message)

    return sender


def _host(scope: Message) -> str:
    """The host that a request names, without its port; empty where it names none."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    named = headers.get(b"host", b"").decode("latin-1")
    if named.startswith("["):
        return named[1:].partition("]")[0]
    return named.partition(":")[0]


async def _refuse(send: Send) -> None:
    body = b"The studio answers on this machine only: open it as http://127.0.0.1 or localhost.\n"
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
