"""Serving the page: the port, the temporary folder, the start and the end."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
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

MOST_PAGES = 16  # whose runs are kept, up to half a gigabyte each


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that holds the port, so that no other program takes it before the page is ready."""
    if not 0 <= port <= 65535:
        raise ArgumentError(f"port: got {port}, expected 0 (any that is free) to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # "::" answers IPv4 too, where the system can.
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, dualstack_ipv6=both)
    except socket.gaierror as error:
        raise ArgumentError(f"host: got {host!r}, which is not an address ({error})") from error
    except OSError as error:
        raise ArgumentError(
            f"port: {port} on {host} cannot be used ({error.strerror}); choose another with "
            "--port, or --port 0 for any that is free"
        ) from error


def run_server(
    library: Library, bound: socket.socket, open_browser: bool, say: Callable[[str], None]
) -> None:
    """Serve until interrupted; the temporary folder is gone afterwards."""
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    with _ended_like_ctrl_c(), _temporary_folder() as folder:
        app = make_app(library, folder, is_loopback(host), port)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        # A page that is open listens until it is cut off, which is no error at the end.
        logging.getLogger("uvicorn.error").addFilter(lambda record: not server.should_exit)
        ended = threading.Event()
        # No daemon: those that compute while Python ends abort it.
        threading.Thread(target=_warm_up, args=(library, ended)).start()
        say(f"GoldDiff studio: {url} (Ctrl+C stops it)")
        if not is_loopback(host):
            say("anyone who can reach this machine on the network can use it")
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
    """A folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="golddiff-studio-"))
    try:
        yield folder
    finally:
        # A run that still computes finds no folder of this name, and writes nothing into it.
        with contextlib.suppress(FileNotFoundError):  # the system's cleaner was first
            shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}-ended")), True)


def _warm_up(library: Library, ended: threading.Event) -> None:
    """The page's first run before anyone asks for it: compiles the kernels, makes the masks."""
    try:
        name = library.names[0]
        opened = library.get(name)
        run = prepare(opened, Settings(name, tuple(opened.default_methods())), None)
        for _ in run.advance():
            compiled = run.steps_done and not opened.quick  # by one step; others make masks too
            if compiled or ended.is_set():
                break
    except GoldDiffError:
        pass  # whoever chooses this store sees the error
    except RuntimeError:
        if not ended.is_set():  # Python starts no work of other threads while it ends
            raise


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """A polite kill interrupts too, instead of ending the process with its files left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def make_app(library: Library, folder: Path, local: bool, port: int) -> FastAPI:
    """The application: gradio's page behind the rules of this machine.

    All files that come and go, uploads included, lie in ``folder``; ``local`` answers only to
    requests for this machine.
    """
    # Both are read when gradio is imported or its parts are made.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(folder)

    import gradio as gr

    from golddiff.studio.handlers import Handlers
    from golddiff.studio.layout import CSS, THEME, build_page

    page = build_page(Handlers(library, folder))
    page.queue(default_concurrency_limit=8, api_open=False)
    # Of a page that was closed, or loaded again, gradio keeps the run for an hour.
    page.state_session_capacity = MOST_PAGES
    keep_files_local(page.blocks.values())
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    gr.mount_gradio_app(
        app, page, "/", server_name="127.0.0.1", server_port=port, footer_links=[],
        run_history=False, allowed_paths=[], show_error=True, max_file_size=POSTS[UPLOAD],
        ssr_mode=False, enable_monitoring=False, pwa=False, mcp_server=False, theme=THEME, css=CSS,
        app_kwargs={"openapi_url": None},
    )  # fmt: skip
    # A mounted page never counts as launched, and until then gradio lets a request name any file
    # of this machine as its upload.
    page.has_launched = page.is_running = True
    app.add_middleware(OnlyThisPage, local=local, folder=folder)
    return app


def _has_screen() -> bool:
    """Whether a browser would open in a window, and not in this terminal."""
    if sys.platform.startswith(("win", "darwin")):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
