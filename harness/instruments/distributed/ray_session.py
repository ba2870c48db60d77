"""Ray for one cell or one sweep: started here on the loopback address, or a cluster at a given address."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

from harness.instruments.distributed.ray_watchdog import ENDED, kill_all, watched

LOOPBACK = "127.0.0.1"

TOKEN = "RAY_AUTH_TOKEN"  # without it nobody joins; ranks that this process starts inherit it
OBJECT_STORE_B = 128 << 20  # shared memory of batches; pages are used as they are written
ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": Ray listens on the loopback alone
LONGEST_PATH_B = 25  # a socket's path has at most 107 bytes (unix(7)), of which Ray adds about 80
REACH_S = 10.0  # how long a cluster may take to accept a connection
STARTS = 4  # attempts to start Ray, which gives up after 30 s where a machine is busy

QUIET = {
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
}

RETURNED = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 20),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""Environment of processes that load data, Ray's and others: they return memory that they use no more."""

NAMESPACE = "harness"  # Ray namespace of the actors' names


class RayError(RuntimeError):
    """Ray cannot be joined or started; the text is one line."""


class RaySession:
    """A Ray that this process has joined. `options`: where ranks find it, for the options of a loader.

    Without an address, Ray is started on the loopback address alone, its processes with `environ`, and ends
    with `close` or this process. Raises `RayError` where the cluster at an address cannot be reached.
    """

    def __init__(
        self, address: str = "", object_store_B: int = OBJECT_STORE_B, environ: Mapping[str, str] = RETURNED
    ) -> None:
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.address = address
        if address:
            join(address)
        else:
            # The usual place, or /tmp where that has too long a path for sockets.
            long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_PATH_B
            folder = tempfile.mkdtemp(prefix="ray", dir="/tmp" if long else None)
            os.environ.setdefault(TOKEN, secrets.token_hex(32))  # Ray keeps the first one of a process
            self._watchdog = watched(folder)
            self.address = _start(folder, object_store_B, environ)
        self.options: dict[str, Any] = {"ray_address": self.address}

    def close(self) -> None:
        """Leave, and end Ray if it was started here."""
        import ray

        ray.shutdown()
        if self._watchdog is not None:
            self._watchdog.communicate(ENDED)


def join(address: str) -> None:
    """Join a running Ray, once per process; raises `RayError` where it cannot be reached."""
    import ray

    if ray.is_initialized():
        return
    os.environ.update(QUIET)
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACH_S).close()  # else Ray would end this process
    except (OSError, ValueError) as error:
        raise RayError(f"no Ray cluster at {address}: {error}; expected host:port") from None
    local = address.startswith(LOOPBACK)
    if local:
        _stay_on_loopback()
    place = {"_node_ip_address": LOOPBACK} if local else {}
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, **place)
    except (ConnectionError, RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise RayError(f"no Ray cluster at {address}: {first}") from None


def _stay_on_loopback() -> None:
    """Keep Ray from replacing the loopback address by this machine's own."""
    from ray._private import ray_constants

    os.environ[ONE_MACHINE] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False  # what the variable sets, where Ray was imported before


def _start(folder: str, object_store_B: int, environ: Mapping[str, str]) -> str:
    import ray

    before = dict(os.environ)
    os.environ.update({**QUIET, **environ})
    _stay_on_loopback()
    try:
        for attempt in range(STARTS):
            try:
                context = ray.init(
                    num_cpus=os.cpu_count(),
                    include_dashboard=False,
                    object_store_memory=object_store_B,
                    namespace=NAMESPACE,
                    log_to_driver=False,
                    configure_logging=False,
                    _node_ip_address=LOOPBACK,
                    _temp_dir=folder,
                )
                break
            except Exception as error:  # Ray raises nothing narrower after its 30 s
                ray.shutdown()
                kill_all(folder)
                if attempt == STARTS - 1:
                    first = str(error).strip().splitlines()[0]
                    raise RayError(f"Ray did not start in {STARTS} attempts: {first}") from None
    finally:
        for name in environ:
            os.environ.pop(name)
        os.environ.update({name: value for name, value in before.items() if name in environ})
    return str(context.address_info["gcs_address"])
