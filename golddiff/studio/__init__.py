"""The studio: a local web page for exploring analytical diffusion interactively."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec

import golddiff
from golddiff.system.errors import ArgumentError

HOST, PORT = "127.0.0.1", 7860
INSTALL = "pip install 'golddiff[studio]'"


def serve(
    stores: Mapping[str, Callable[[], golddiff.ImageStore]],
    host: str = HOST,
    port: int = PORT,
    open_browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the studio until it is interrupted.

    Args:
        stores: maps the name of each store to a function that opens it, called again if the store
            was rebuilt meanwhile; the page starts with the first store.
        host: address to listen on; the default accepts connections from this machine only.
        port: port to listen on; 0 for any free port.
        open_browser: open the page in a browser if there is a screen.
        say: called with each message for the terminal.

    Raises:
        ArgumentError: gradio is not installed; no stores; the address cannot be listened on.
    """
    if find_spec("gradio") is None:
        raise ArgumentError(f"studio: needs gradio, which is not installed; run: {INSTALL}")

    from golddiff.studio.library import Library
    from golddiff.studio.server import bound_socket, run_server

    with bound_socket(host, port) as bound:
        library = Library(stores)
        for name in library.names:
            library.get(name)
        run_server(library, bound, open_browser, say)
