"""Joining a cluster: invalid addresses, no answer, other programs, and a second cluster."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from golddiff.cluster import ClusterError, connect, joining
from golddiff.cluster.joining import SEVERAL_MACHINES
from golddiff.system.errors import ArgumentError

pytest.importorskip("ray", reason="needs Ray: pip install 'golddiff[cluster]'")


SETTINGS = bytes(3) + b"\x04" + bytes(5)  # first frame of an HTTP/2 server such as Ray's head


class QuietHandler(BaseHTTPRequestHandler):
    """A request handler that writes no log."""

    def log_message(self, *args):
        pass


def refusal(address):
    """The one-line message of the ClusterError that ``connect`` raises."""
    with pytest.raises(ClusterError) as error:
        connect(address)
    text = str(error.value)
    assert "\n" not in text
    return text


@contextlib.contextmanager
def listening(answer=None):
    """The address of a local port that accepts connections and sends ``answer`` to each."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):  # closed at the end of the test
                while True:
                    connection, _ = server.accept()
                    connections.append(connection)
                    if answer is not None:
                        connection.sendall(answer)

        connections = []
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for connection in connections:
            connection.close()


@pytest.mark.parametrize(
    "address", ["nonsense", "host", "host:port", "http://a:1", "a b:1", 5, b"a:1"]
)
def test_an_invalid_address_is_refused(address):
    with pytest.raises(ArgumentError, match=r"address: got .* expected host:port or auto$"):
        connect(address)


def test_an_address_of_rays_client_is_refused():
    with pytest.raises(ArgumentError, match=r"expected host:port or auto .*ray job submit"):
        connect("ray://127.0.0.1:10001")


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_an_address_without_a_listener_is_refused(name, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert f"nobody answers at {name}:{port}" in refusal(f"{name}:{port}")
    monkeypatch.setenv("RAY_ADDRESS", f"{name}:{port}")
    assert f"nobody answers at {name}:{port}" in refusal(None)


def test_a_port_out_of_range_is_refused():
    assert "nobody answers at 127.0.0.1:70000" in refusal("127.0.0.1:70000")


def test_an_address_of_another_program_is_refused(monkeypatch):
    monkeypatch.setattr(joining, "SECONDS_TO_ANSWER", 0.5)
    expected = "expected what ray start --head prints"
    for answer in (None, b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"-ERR unknown command\r\n"):
        with listening(answer) as address:
            assert f"no Ray cluster answers at {address}; {expected}" in refusal(address)
    with HTTPServer(("127.0.0.1", 0), QuietHandler) as page:  # like Ray's dashboard
        threading.Thread(target=page.serve_forever, daemon=True).start()
        assert expected in refusal(f"127.0.0.1:{page.server_port}")
        page.shutdown()


@pytest.mark.parametrize("num_cpus", [0, -1, 1.5, True, "2"])
def test_an_invalid_num_cpus_is_refused(num_cpus):
    with pytest.raises(ArgumentError, match="num_cpus: got"):
        connect(num_cpus=num_cpus)


def test_num_cpus_is_refused_with_the_address_of_a_cluster():
    with pytest.raises(ArgumentError, match="num_cpus: applies to a cluster that is started here"):
        connect("127.0.0.1:6379", num_cpus=2)


def test_a_cluster_that_requires_a_token_is_refused(monkeypatch):
    from ray.exceptions import AuthenticationError

    def refuse(**options):
        raise AuthenticationError("InvalidAuthToken: it is missing\nor incorrect")

    # Replaces ray, which may have joined the cluster of other tests.
    stand_in = SimpleNamespace(is_initialized=lambda: False, init=refuse, shutdown=lambda: None)
    monkeypatch.setattr(joining, "ray_package", lambda: stand_in)
    with listening(SETTINGS) as address:
        message = refusal(address)
    assert f"{address}: InvalidAuthToken: it is missing or incorrect." in message
    assert "RAY_AUTH_TOKEN" in message


def test_local_ignores_the_address_of_the_environment(monkeypatch):
    started = []
    stand_in = SimpleNamespace(
        is_initialized=lambda: False, init=lambda **options: started.append(options["address"])
    )
    monkeypatch.setattr(joining, "ray_package", lambda: stand_in)
    monkeypatch.setenv("RAY_ADDRESS", "ray://nowhere:1")
    connect("local")
    assert started == ["local"]
    with pytest.raises(ArgumentError, match="address: got 'ray://nowhere:1'"):
        connect()


def test_the_refusal_of_a_token_is_quoted_from_the_cause():
    from ray.exceptions import AuthenticationError

    error = ConnectionError("Failed to connect")
    error.__cause__ = AuthenticationError("InvalidAuthToken")
    assert joining._reason(error) is error.__cause__
    assert joining._reason(OSError("other")).args == ("other",)


def test_one_process_joins_one_cluster(cluster):
    connect()
    connect(cluster.address)
    with listening(SETTINGS) as address:
        assert f"asked for {address}, but this process has joined" in refusal(address)


def test_a_cluster_started_here_listens_on_127_0_0_1_only():
    script = (
        "import psutil, ray, golddiff.cluster\n"
        "golddiff.cluster.connect(num_cpus=1)\n"
        "ray.get(ray.remote(lambda: 1).remote())\n"
        "ours = [psutil.Process(), *psutil.Process().children(recursive=True)]\n"
        "calls = [c for p in ours for c in p.net_connections('tcp') if c.status == 'LISTEN']\n"
        "assert calls\n"
        "print({c.laddr.ip.removeprefix('::ffff:') for c in calls})\n"
        "ray.shutdown()\n"
    )
    environment = {
        k: v for k, v in os.environ.items() if k not in (SEVERAL_MACHINES, "RAY_ADDRESS")
    }
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert done.stdout.strip() == "{'127.0.0.1'}", done.stderr
