"""Inside a network of namespaces: TCP as a sender with credits, for links meant to lose nothing.

Used by `harness.instruments.network.netns_server`. A collective library announces its receiver's buffers
before data is sent, and RoCE's links pause instead of dropping. Default TCP takes what it can get, infers
losses from long queues and retransmits: links then carry what a fluid would not, and shares are uneven. Here
a connection has at most its receiver's small, fixed buffer in flight, grows to it by slow start (reno), and
does not retransmit what only waits: no tail-loss probe, no timeout within a second.
"""

from __future__ import annotations

from pathlib import Path

SYSCTLS = Path("/proc/sys/net/ipv4")

RTO_MIN_S = 1.0
"""Least retransmission timeout: as long as a queue of 6 MB lasts at 50 Mbit/s. With the kernel's 0.2 s a
sender would retransmit what only waits. A frame lost to a full queue or to the kernel's backlog (1,000
packets by default, net.core.netdev_max_backlog) may cost this long."""

FIRST_FRAMES = 2
"""Initial frames of a connection (the kernel: ten): more would overrun that backlog for hundreds at once."""

RTO_MIN = 13
"""RTAX_RTO_MIN of linux/rtnetlink.h: its bit makes TCP keep a route's value."""

METRICS = {"lock": 1 << RTO_MIN, "rto_min": round(RTO_MIN_S * 1e3), "initcwnd": FIRST_FRAMES}
"""Metrics of a route, for the kernel: milliseconds, frames."""


def limit_window(receive_buffer_B: int) -> None:
    """Set the window of connections opened from now on in this thread's namespace (ip-sysctl.rst)."""
    settings = {
        "tcp_congestion_control": "reno",
        "tcp_moderate_rcvbuf": "0",
        "tcp_rmem": f"{receive_buffer_B} {receive_buffer_B} {receive_buffer_B}",
        "tcp_early_retrans": "0",
    }
    for name, value in settings.items():
        (SYSCTLS / name).write_text(value)
