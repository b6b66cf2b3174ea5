import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from golddiff import studio
from golddiff.studio.security import is_loopback
from golddiff.system.errors import ArgumentError
from tests.studio.conftest import Studio


def test_only_addresses_of_this_machine_are_loopback():
    assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.4", "localhost.example", ""]))


def test_a_missing_gradio_names_the_command_that_installs_it(monkeypatch, fails):
    monkeypatch.setattr(studio, "find_spec", lambda name: None)
    assert "pip install 'golddiff[studio]'" in fails("studio")


def test_bad_ports_hosts_and_stores_are_reported_in_one_line(tmp_path, fails):
    pytest.importorskip("gradio")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for options, message in (
            (["--port", port], f"port: {port} on 127.0.0.1 cannot be used"),
            (["--port", "70000"], "port: got 70000"),
            (["--host", "no such host"], "host: got 'no such host'"),
            (["--port", "0", "--store", str(tmp_path)], "store: "),
            (["--port", "0", "--data", "moons"], "the studio shows images"),
            (["--size", "8"], "--size and --limit apply to --data only"),
        ):
            assert message in fails("studio", "--no-browser", *options)


# Computes forever, like a run that is interrupted. Tests under nohup would ignore SIGHUP.
_BUSY = """
import signal, torch
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from golddiff.studio import server
server._warm_up = lambda library, ended: [torch.rand(10**6).sort() for _ in iter(int, 1)]
"""


def test_a_busy_studio_stops_without_errors_when_its_terminal_closes(tmp_path):
    pytest.importorskip("gradio")
    running = Studio(tmp_path, "--data", "digits", first=_BUSY)
    with urllib.request.urlopen(f"{running.url}gradio_api/heartbeat/page"):  # an open page
        running.process.send_signal(signal.SIGHUP)
        running.check_end()


# Interrupts itself while its first run is computing.
_SCRIPT = """
import os, signal, threading
import golddiff, torch
from golddiff import studio
from golddiff.studio.run import Run
def busy(self):
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    while True:
        yield torch.rand(10**6).sort()
Run.advance = busy
studio.serve({"digits": lambda: golddiff.load("digits")}, port=0, open_browser=False)
"""


def test_an_interrupted_script_with_a_studio_stops_without_errors():
    pytest.importorskip("gradio")
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_studio_needs_a_store():
    pytest.importorskip("gradio")
    with pytest.raises(ArgumentError, match="stores: got none"):
        studio.serve({}, port=0)
