"""The studio: a page on this machine that shows analytical diffusion at work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from golddiff.system.errors import ArgumentError

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore

HOST, PORT = "127.0.0.1", 7860
INSTALL = "pip install 'golddiff[studio]'"


def check_installed() -> None:
    """Raise where the page's library is missing."""
    if find_spec("gradio") is None:
        raise ArgumentError(f"studio: needs gradio, which is not installed; run: {INSTALL}")


def serve(
    stores: Mapping[str, Callable[[], ImageStore]],
    host: str = HOST,
    port: int = PORT,
    open_browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the studio until it is interrupted.

    Args:
        stores: by the name shown, what opens each (again, where it was rebuilt meanwhile); the
            first is the one that the page begins with.
        host: address to listen on; the default is reached from this machine only.
        port: 0 for any that is free.
        open_browser: open the page, where there is a screen.
        say: called with each line for the person at the terminal.
    """
    check_installed()

    from golddiff.studio.library import Library
    from golddiff.studio.server import bound_socket, run_server

    with bound_socket(host, port) as bound:
        library = Library(stores)
        for name in library.names:
            library.get(name)
        run_server(library, bound, open_browser, say)
