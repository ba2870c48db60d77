"""Fill a link for a moment and measure what it carries; a program that runs at either end of the link.

`python -m harness.instruments.network.bandwidth_probe receive ADDRESS` prints its port and reads one
connection. `send ADDRESS PORT INTERFACE FRAME_B SECONDS` keeps it full and prints the bytes per second by
which the interface's own counter grew, once it has been full for a while. Both end with the process that
started them.
"""

from __future__ import annotations

import re
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness.instruments.process import die_with_starter

CHUNK = bytes(1 << 16)
FILL_SHARE = 0.5  # of the measured time, to spend the link's saved-up burst first
WAIT_S = 10.0
AT_ONCE_S = 0.0005  # longest time that reading the counter may take, so that it is of one moment
READS = 50


class Count(NamedTuple):
    """What an interface has sent, and when it was read."""

    bytes_B: int
    packets: int
    at_s: float


def sent(interface: str) -> Count:
    """Return what the interface has sent, in this process's own network (proc(5), /proc/net/dev)."""
    count = Count(0, 0, 0.0)
    for _ in range(READS):  # the processor may be taken away between the counter and the clock
        begin_s = time.monotonic()
        text = Path("/proc/net/dev").read_text()
        end_s = time.monotonic()
        counts = re.search(rf"^ *{re.escape(interface)}:(.*)$", text, re.MULTILINE)
        if counts is None:
            raise SystemExit(f"there is no interface {interface}")
        sent_B, packets = map(int, counts[1].split()[8:10])
        count = Count(sent_B, packets, (begin_s + end_s) / 2)
        if end_s - begin_s < AT_ONCE_S:
            break
    return count


def line_rate(begin: Count, end: Count, segment_B: int, frame_B: int) -> float:
    """Return B/s on the line between two counts; what is cut into frames later has one header."""
    head_B = frame_B - segment_B
    data_B = end.bytes_B - begin.bytes_B - head_B * (end.packets - begin.packets)
    return data_B * frame_B / segment_B / (end.at_s - begin.at_s)


def _report(value: float) -> None:
    sys.stdout.write(f"{value}\n")
    sys.stdout.flush()


def receive(address: str) -> None:
    """Read one connection until it ends."""
    with socket.create_server((address, 0)) as server:
        _report(server.getsockname()[1])
        server.settimeout(WAIT_S)
        connection, _ = server.accept()
        buffer = bytearray(1 << 18)
        with connection:
            connection.settimeout(WAIT_S)
            while connection.recv_into(buffer):
                pass


def send(address: str, port: int, interface: str, frame_B: int, seconds: float) -> None:
    """Keep one connection full, and print the interface's rate in B/s."""
    with socket.create_connection((address, port), timeout=WAIT_S) as connection:
        segment_B = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        connection.settimeout(0.02)
        _fill(connection, time.monotonic() + FILL_SHARE * seconds)
        begin = sent(interface)
        _fill(connection, begin.at_s + seconds)
        _report(line_rate(begin, sent(interface), segment_B, frame_B))


def _fill(connection: socket.socket, until_s: float) -> None:
    while time.monotonic() < until_s:
        with suppress(TimeoutError):
            connection.send(CHUNK)


if __name__ == "__main__":
    die_with_starter()
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        send(sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), float(sys.argv[6]))
