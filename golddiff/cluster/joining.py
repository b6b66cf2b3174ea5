"""Join a Ray cluster, or start one on this machine."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import socket
from collections.abc import Iterator
from typing import Any

from golddiff import __version__
from golddiff.system.errors import ArgumentError, ClusterError, one_line
from golddiff.system.numbers import check_count

SECONDS_TO_ANSWER = 10.0
LOCAL = "local"  # Ray's name for a cluster that it starts here
STARTS = 3
SEVERAL_MACHINES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# The preface of an HTTP/2 client (RFC 9113), with empty settings.
SETTINGS = b"\x04"
HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + SETTINGS + bytes(5)
_ADDRESS = re.compile(r"^(?P<host>[^:/\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d+)$")


def connect(address: str | None = None, num_cpus: int | None = None) -> None:
    """Join a Ray cluster; has no effect if this process has joined the same one.

    Anyone with access to a Ray cluster can run any code on it: join only clusters that you trust.

    Args:
        address: "host:port" of a cluster's head (as ``ray start --head`` prints), or "auto" for
            the cluster that runs on this machine. "local" starts a cluster of this machine's
            cores, which ends with this process and listens only on 127.0.0.1 unless
            $RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER is 1. None takes $RAY_ADDRESS if set, else "local".
        num_cpus: number of cores of a cluster started here; default all.

    Raises:
        ArgumentError: the address is invalid; num_cpus is below 1, or given with an address.
        ClusterError: Ray is not installed, nobody answers, Ray at the address has another version
            or requires a token, or this process has joined another cluster.
    """
    ray = ray_package()
    if address is None:
        address = os.environ.get("RAY_ADDRESS") or LOCAL
    matched = _ADDRESS.match(address) if isinstance(address, str) else None
    if address not in (LOCAL, "auto") and matched is None:
        hint = " (from outside a cluster every call is slow: run the program in it, ray job submit)"
        is_client = str(address).startswith("ray://")
        raise ArgumentError(
            f"address: got {address!r}, expected host:port or auto{hint if is_client else ''}"
        )
    if num_cpus is not None:
        if address != LOCAL:
            raise ArgumentError(
                "num_cpus: applies to a cluster that is started here, not to one given"
            )
        check_count("num_cpus", num_cpus)
    if matched is not None:
        _check_head(matched["host"].strip("[]"), int(matched["port"]), str(address))
    if ray.is_initialized():
        joined = str(ray.get_runtime_context().gcs_address) if matched else ""
        # Compare ports only: a host has several names.
        if matched is not None and joined.rsplit(":", 1)[-1] != matched["port"]:
            raise ClusterError(
                f"cluster: asked for {address}, but this process has joined {joined} already; "
                "ray.shutdown() leaves it"
            )
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        # Usage reports and the dashboard are opt-in.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Without "local", Ray joins any cluster that runs on this machine.
        options |= {"address": LOCAL, "include_dashboard": False, "num_cpus": num_cpus}
    else:
        options["address"] = address
    is_alone = address == LOCAL and SEVERAL_MACHINES not in os.environ
    # On a busy machine, Ray's own start times out after half a minute.
    for attempts_left in reversed(range(STARTS if address == LOCAL else 1)):
        try:
            with _listening_locally() if is_alone else contextlib.nullcontext():
                ray.init(**options)
            return
        except Exception as error:  # Ray's exception types vary between releases
            ray.shutdown()
            if attempts_left == 0:
                where = "this machine" if address == LOCAL else address
                raise ClusterError(f"cluster: {where}: {one_line(_reason(error), 500)}") from error


def _reason(error: Exception) -> Exception:
    """The error itself, or the refusal of a token that caused it."""
    cause: Any = error
    while cause is not None and type(cause).__name__ != "AuthenticationError":
        cause = cause.__cause__ or cause.__context__
    return cause or error


@contextlib.contextmanager
def _listening_locally() -> Iterator[None]:
    """Context in which a new cluster listens only on the loopback address.

    Ray replaces 127.0.0.1 by the machine's external address, except where it does not support
    clusters of several machines. This context turns that support off.
    """
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    os.environ[SEVERAL_MACHINES], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        del os.environ[SEVERAL_MACHINES]
        constants.ENABLE_RAY_CLUSTER = before


def ray_package() -> Any:
    """Import ray; raises ClusterError if it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ClusterError(
            "cluster: Ray is not installed; pip install 'golddiff[cluster]'"
        ) from error


def check_version(driver: str) -> None:
    """Raise ClusterError if the driver runs another version of golddiff than this process."""
    if driver != __version__:
        raise ClusterError(
            f"golddiff {__version__} runs on {socket.gethostname()}, the driver's is {driver}; "
            "install one version everywhere"
        )


def _check_head(host: str, port: int, address: str) -> None:
    """Raise ClusterError unless a Ray head answers; Ray itself would wait for minutes.

    A head serves gRPC over HTTP/2, so its first frame holds HTTP/2 settings.
    """
    try:
        connection = socket.create_connection((host, port), SECONDS_TO_ANSWER)
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"cluster: nobody answers at {address} ({getattr(error, 'strerror', None) or error})"
        ) from error
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        connection.close()
        return
    reply = b""
    with connection, contextlib.suppress(OSError):
        connection.sendall(HTTP_2)
        reply = connection.recv(9)
    if reply[3:4] != SETTINGS:
        raise ClusterError(
            f"cluster: no Ray cluster answers at {address}; expected what ray start --head "
            "prints, by default port 6379 of the head"
        )
