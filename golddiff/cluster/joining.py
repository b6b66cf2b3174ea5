"""Joining a Ray cluster, or starting one on this machine."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import socket
from collections.abc import Iterator
from typing import Any

from golddiff.system.errors import ArgumentError, ClusterError
from golddiff.system.numbers import check_count

SECONDS_TO_ANSWER = 10.0
STARTS = 3
SEVERAL_MACHINES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# HTTP/2, RFC 9113: how a client begins, with settings that change nothing.
SETTINGS = b"\x04"
HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + SETTINGS + bytes(5)
_ADDRESS = re.compile(r"^(?P<host>[^:/\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d+)$")


def connect(address: str | None = None, num_cpus: int | None = None) -> None:
    """Join a Ray cluster; further calls with the same cluster do nothing.

    Whoever may send work to a Ray cluster may run any code on it: join clusters that you trust.

    Args:
        address: "host:port" of a cluster's head (what ``ray start --head`` prints), or "auto" for
            the one that runs on this machine. None: $RAY_ADDRESS where it is set, else a cluster
            of this machine's cores, which ends with this process. It listens on 127.0.0.1 alone,
            unless $RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER is 1.
        num_cpus: cores of a cluster that is started here; default all.

    Raises:
        ArgumentError: an address that is none; num_cpus below 1, or for a cluster that runs.
        ClusterError: Ray is not installed, nobody answers, Ray there is of another version or
            asks for a token, or this process has joined another cluster.
    """
    ray = ray_package()
    if address is None:
        address = os.environ.get("RAY_ADDRESS") or None
    found = _ADDRESS.match(address or "")
    if address not in (None, "auto") and found is None:
        hint = " (from outside a cluster every call is slow: run the program in it, ray job submit)"
        own = str(address).startswith("ray://")
        raise ArgumentError(
            f"address: got {address!r}, expected host:port or auto{hint if own else ''}"
        )
    if num_cpus is not None:
        if address is not None:
            raise ArgumentError(
                "num_cpus: applies to a cluster that is started here, not to one given"
            )
        check_count("num_cpus", num_cpus)
    if found is not None:
        _knock(found["host"].strip("[]"), int(found["port"]), str(address))
    if ray.is_initialized():
        joined = str(ray.get_runtime_context().gcs_address) if found else ""
        # Hosts have many names, ports one.
        if found is not None and joined.rsplit(":", 1)[-1] != found["port"]:
            raise ClusterError(
                f"cluster: asked for {address}, but this process has joined {joined} already; "
                "ray.shutdown() leaves it"
            )
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        # Ray's usage reports and its web page are for those who ask for them.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # "local": otherwise Ray joins whatever cluster happens to run on this machine.
        options |= {"address": "local", "include_dashboard": False, "num_cpus": num_cpus}
    else:
        options["address"] = address
    # On a machine that is busy with other things Ray gives its own start up after half a minute.
    for left in reversed(range(STARTS if address is None else 1)):
        try:
            with _on_this_machine() if address is None else contextlib.nullcontext():
                ray.init(**options)
            return
        except Exception as error:  # Ray's own kinds differ from release to release
            ray.shutdown()
            if left == 0:
                raise ClusterError(
                    f"cluster: {address or 'this machine'}: {_why(error)}"
                ) from error


@contextlib.contextmanager
def _on_this_machine() -> Iterator[None]:
    """A cluster that is started meanwhile listens on this machine's own address alone.

    Ray turns an address of 127.0.0.1 that it is given into the machine's outer one, but on systems
    where it runs no clusters of several machines; so this makes it one of them.
    """
    constants: Any = importlib.import_module("ray._private.ray_constants")
    asked, before = os.environ.get(SEVERAL_MACHINES), constants.ENABLE_RAY_CLUSTER
    if asked is None:
        os.environ[SEVERAL_MACHINES] = "0"
        constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        if asked is None:
            del os.environ[SEVERAL_MACHINES]
            constants.ENABLE_RAY_CLUSTER = before


def ray_package() -> Any:
    """The package ray."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ClusterError(
            "cluster: Ray is not installed; pip install 'golddiff[cluster]'"
        ) from error


def _knock(host: str, port: int, address: str) -> None:
    """Raise where nobody answers, or somebody else: Ray itself would wait for minutes.

    Whoever speaks HTTP/2, as gRPC and so a cluster's head does, opens with its settings.
    """
    try:
        line = socket.create_connection((host, port), SECONDS_TO_ANSWER)
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"cluster: nobody answers at {address} ({getattr(error, 'strerror', None) or error})"
        ) from error
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        line.close()
        return
    said = b""
    with line, contextlib.suppress(OSError):
        line.sendall(HTTP_2)
        said = line.recv(9)
    if said[3:4] != SETTINGS:
        raise ClusterError(
            f"cluster: no Ray cluster answers at {address}; expected what ray start --head "
            "prints, by default port 6379 of the head"
        )


def _why(error: Exception) -> str:
    """The first lines of a message that may be long, as one; or what to do about a token."""
    if type(error).__name__ == "AuthenticationError":  # since Ray 2.52
        return (
            "it asks for a token; set RAY_AUTH_MODE=token, and put its token (what "
            "ray get-auth-token prints on its head) in RAY_AUTH_TOKEN or ~/.ray/auth_token"
        )
    return " ".join(str(error).split())[:300] or type(error).__name__
