"""This process and its host: its end with its parent, its threads, what it has sent, code that it keeps.

The standard library alone, because the parent imports it, too.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import NamedTuple


def memory_bytes() -> int:
    """Return the physical memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_starter() -> None:
    """Make the kernel kill this process once the thread that started it is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_parent(lifeline: int) -> None:
    """Make the kernel kill this process's group once the parent's end of the pipe `lifeline` closes.

    This works even while the process hangs in C, and covers the processes it started. Linux only: fcntl(2),
    F_SETSIG.
    """
    os.set_inheritable(lifeline, False)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, getattr(fcntl, "F_SETSIG", 10), signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    if select.select([lifeline], [], [], 0)[0]:  # it closed before this was armed
        os.killpg(0, signal.SIGKILL)


@contextmanager
def only_threads(number: int) -> Iterator[None]:
    """Limit the threads that XLA starts inside the block: it takes one per core that it may use."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, sorted(allowed)[:number])
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the cyclic garbage collector out of the block."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


UNARY_FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "log", "log10", "log2"),
    *("sin", "sqrt", "tan", "tanh", "trunc"),
)
"""Functions of one argument that torch leaves to MKL: IMPLEMENT_VML_MKL in its ATen/cpu/vml.h."""


def call_unary_functions() -> None:
    """Call each with one number, in fp32 and fp64; nothing happens where torch is not imported.

    MKL chooses its code on the first call of each function. Where several threads make that call together,
    one of them may get the least accurate code (pytorch/pytorch, issue 188792): a process's first fp32 cosine
    was off by 1.5e-4.
    """
    if torch := sys.modules.get("torch"):
        for name, dtype in product(UNARY_FUNCTIONS, (torch.float32, torch.float64)):
            getattr(torch, name)(torch.ones(1, dtype=dtype))


SENT = struct.Struct("<QQ")
SENT_AT = 200  # of `tcpi_bytes_sent` and `tcpi_bytes_retrans` in tcp_info (linux/tcp.h, since Linux 4.19)


def sent_B() -> int:
    """Return the bytes sent so far over the TCP connections that are open, each sent again counted once.

    The kernel counts them (TCP_INFO of tcp(7)), without heads of packets. Of gloo's collectives these are the
    tensors' bytes, and a few per message.
    Raises OSError where the kernel counts none. A connection that was closed is no longer counted.
    """
    total = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile, as the folder's own descriptor is
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(descriptor))) as one:
                    if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                        total += _sent_B(one)
    return total


def _sent_B(connection: socket.socket) -> int:
    counted = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SENT_AT + SENT.size)
    if len(counted) < SENT_AT + SENT.size:
        raise OSError("the kernel does not count bytes per connection: expected Linux 4.19 or later")
    sent, again = SENT.unpack_from(counted, SENT_AT)
    return int(sent - again)


COMPILED_FOLDER = "HARNESS_COMPILED"  # variable that names the folder. Without it nothing is kept.


class KeptCode(NamedTuple):
    """`method`: "cached" where the code was found, "cold" where it was made and kept, else ""."""

    code: bytes
    method: str


def kept_code(make: Callable[[], bytes], *key: str) -> KeptCode:
    """Return what `make()` returns, or returned in an earlier process for the same key."""
    folder = os.environ.get(COMPILED_FOLDER)
    if not folder:
        return KeptCode(make(), "")
    path = Path(folder, "kept", sha256("\0".join(key).encode()).hexdigest())
    if path.is_file():
        return KeptCode(path.read_bytes(), "cached")
    code = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_bytes(code)
    new.replace(path)
    return KeptCode(code, "cold")
