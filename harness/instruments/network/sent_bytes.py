"""The bytes that this process has sent over TCP, as the kernel counts them (TCP_INFO of tcp(7)).

Heads of packets are left out. Of gloo's collectives these are the tensors' bytes, and a few per message.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

SENT = struct.Struct("<QQ")
SENT_AT = 200
"""Where `tcpi_bytes_sent` and `tcpi_bytes_retrans` are in struct tcp_info (linux/tcp.h, since Linux 4.19)."""


def sent_B() -> int:
    """Return the bytes sent so far over the TCP connections that are open, each sent again counted once.

    Raises OSError where the kernel counts none. A connection that was closed is no longer counted.
    """
    total = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(Path("/proc/self/fd") / descriptor).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    total += _sent_B(one)
        except FileNotFoundError:  # closed meanwhile, as the folder's own descriptor is
            continue
    return total


def _sent_B(connection: socket.socket) -> int:
    counted = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SENT_AT + SENT.size)
    if len(counted) < SENT_AT + SENT.size:
        raise OSError("the kernel does not count bytes per connection: expected Linux 4.19 or later")
    sent, again = SENT.unpack_from(counted, SENT_AT)
    return int(sent - again)
