"""The connection to a Ray cluster: the one that RAY_ADDRESS names, or one of this process."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from fldb_flower.errors import FederationError, SettingsError, one_line
from fldb_flower.system.startup import is_forked

LOCAL = "local"
"""Address for which Ray starts a cluster on this machine."""
SLOW_START = "node timed out during startup"
"""Words of Ray's error if a new node is not ready after 30 seconds, a limit without a setting."""
STARTS = 3
"""Number of attempts to start Ray on this machine."""
_CONNECT_SECONDS = 10.0
_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # an empty frame
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS


def address() -> str:
    """Return the address of the cluster."""
    return os.environ.get("RAY_ADDRESS") or LOCAL


@contextlib.contextmanager
def connected() -> Iterator[Any]:
    """Connect to the cluster, and yield the module ``ray``.

    If there is no address, a cluster is started on this machine and stopped at the end. If this
    process is connected already, that connection is used and stays open.

    Raises
    ------
    SettingsError
        Ray is not installed.
    FederationError
        The cluster cannot be reached or started.
    """
    where, handler = address(), signal.getsignal(signal.SIGTERM)
    if where == LOCAL:
        # Servers listen on 127.0.0.1. Ray reads the variable when it is imported.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray  # noqa: PLC0415 - optional
    except ImportError as error:
        raise SettingsError(
            f"engine.workers=ray needs Ray: pip install 'flwr[simulation]', or use"
            f" engine.workers=auto ({one_line(error)})"
        ) from None
    if ray.is_initialized():
        if is_forked():
            raise FederationError(
                "engine.workers=ray: this process was forked from one that is connected to Ray; use"
                " jobs=1, or start the sweep before ray.init"
            )
        yield ray
        return
    try:
        _check_port(where)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of future versions of Ray
            _start(ray, where)
    except Exception as error:  # Ray raises many kinds
        what = "Ray did not start" if where == LOCAL else f"RAY_ADDRESS={where}: no cluster there"
        remedy = "" if where == LOCAL else "; `ray start --head` starts one"
        raise FederationError(one_line(f"{what}: {' '.join(str(error).split())}{remedy}")) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray replaces it
    try:
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, where: str) -> None:
    for attempt in range(1, STARTS + 1):
        try:
            ray.init(where, log_to_driver=False, logging_level=logging.ERROR, **_options(where))
        except Exception as error:
            if SLOW_START not in str(error) or attempt == STARTS:
                raise
            ray.shutdown()
        else:
            return


def _options(where: str) -> dict[str, Any]:
    if where != LOCAL:
        return {}
    processors = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return {"num_cpus": processors, "include_dashboard": False}


def _check_port(where: str) -> None:
    """Raise an OSError if no gRPC server listens at ``host:port``: Ray would wait for minutes.

    gRPC is HTTP/2, in which a connection begins with a SETTINGS frame from both sides.
    """
    host, _, port = where.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS", "0") == "0":
            connection.sendall(_PREFACE)
            if connection.recv(9)[3:4] != _SETTINGS[3:4]:  # the type of a frame
                raise OSError("the server at this port is not Ray's")
