"""Serve the page: bind the port, create the temporary folder, start and shut down."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from golddiff.studio.library import Library
from golddiff.studio.run import Settings, prepare
from golddiff.studio.security import POSTS, UPLOAD, OnlyThisPage, is_loopback, keep_files_local
from golddiff.system.errors import ArgumentError, GoldDiffError
from golddiff.system.signals import signals_as_interrupt

MAX_PAGES = 16  # pages whose runs are kept, up to half a gigabyte each


def bound_socket(host: str, port: int) -> socket.socket:
    """Bind a socket now, so that no other program takes the port before the page is ready."""
    if not 0 <= port <= 65535:
        raise ArgumentError(f"port: got {port}, expected 0 (any free port) to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # "::" accepts IPv4 too if the system supports it.
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, dualstack_ipv6=both)
    except socket.gaierror as error:
        raise ArgumentError(f"host: got {host!r}, which is not an address ({error})") from error
    except OSError as error:
        raise ArgumentError(
            f"port: {port} on {host} cannot be used ({error.strerror}); choose another with "
            "--port, or --port 0 for any free port"
        ) from error


def run_server(
    library: Library, bound: socket.socket, open_browser: bool, say: Callable[[str], None]
) -> None:
    """Serve until interrupted, then delete the temporary folder."""
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    with signals_as_interrupt(), _temporary_folder() as folder:
        app = make_app(library, folder, is_loopback(host), port)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        # Shutting down cuts the connections of open pages, which uvicorn logs as errors.
        logging.getLogger("uvicorn.error").addFilter(lambda record: not server.should_exit)
        ended = threading.Event()
        # Not a daemon: a daemon thread that computes while Python exits aborts the process.
        threading.Thread(target=_warm_up, args=(library, ended)).start()
        say(f"GoldDiff studio: {url} (Ctrl+C stops it)")
        if not is_loopback(host):
            say("anyone who can reach this machine over the network can use it")
        if open_browser and _has_screen():
            threading.Timer(0.5, webbrowser.open, (url,)).start()
        try:
            server.run(sockets=[bound])
        except KeyboardInterrupt:
            say("stopped")
        finally:
            ended.set()


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A temporary folder that is deleted when the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="golddiff-studio-"))
    try:
        yield folder
    finally:
        # Renamed first, so that a run still computing cannot write into it during deletion.
        with contextlib.suppress(FileNotFoundError):  # the system may have deleted it already
            shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}-ended")), True)


def _warm_up(library: Library, ended: threading.Event) -> None:
    """Do the page's default run in advance, which compiles the kernels and computes the masks."""
    try:
        name = library.names[0]
        opened = library.get(name)
        run = prepare(opened, Settings(name, tuple(opened.default_methods())), None)
        for _ in run.advance():
            compiled = run.steps_done and not opened.quick  # other steps only compute more masks
            if compiled or ended.is_set():
                break
    except GoldDiffError:
        pass  # shown to the user who selects this store
    except RuntimeError:
        if not ended.is_set():  # thread pools accept no work while Python exits
            raise


def make_app(library: Library, folder: Path, local: bool, port: int) -> FastAPI:
    """Create the application: gradio's page behind :class:`OnlyThisPage`.

    ``folder`` holds temporary files and uploads; ``local`` accepts requests to this machine only.
    """
    # Gradio reads both when it is imported or its components are created.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(folder)

    import gradio as gr

    from golddiff.studio.handlers import Handlers
    from golddiff.studio.layout import CSS, THEME, build_page

    page = build_page(Handlers(library, folder))
    page.queue(default_concurrency_limit=8, api_open=False)
    # Gradio keeps the run of a closed or reloaded page for an hour; this limits their number.
    page.state_session_capacity = MAX_PAGES
    keep_files_local(page.blocks.values())
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    gr.mount_gradio_app(
        app, page, "/", server_name="127.0.0.1", server_port=port, footer_links=[],
        run_history=False, allowed_paths=[], show_error=True, max_file_size=POSTS[UPLOAD],
        ssr_mode=False, enable_monitoring=False, pwa=False, mcp_server=False, theme=THEME, css=CSS,
        app_kwargs={"openapi_url": None},
    )  # fmt: skip
    # Gradio never marks a mounted page as launched, and before launch it accepts any file path
    # on this machine as an upload.
    page.has_launched = page.is_running = True
    app.add_middleware(OnlyThisPage, local=local, folder=folder)
    return app


def _has_screen() -> bool:
    """Whether a browser can open a window; otherwise it might open in the terminal."""
    if sys.platform.startswith(("win", "darwin")):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
