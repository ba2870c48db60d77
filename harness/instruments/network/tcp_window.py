"""Inside a network of namespaces: TCP as a sender with credits, for links meant to lose nothing.

Used by `harness.instruments.network.netns_server`. A collective library hands its receiver's buffers out
before
data is sent, and RoCE's links pause instead of dropping. TCP as it comes takes what it can get, guesses at
losses where a queue is long, and sends again: links then carry what a fluid would not, and shares are uneven.
Here a connection has at most its receiver's small, fixed buffer under way, grows to it at once but for slow
start (reno), and sends nothing again that only waits: no probe for a lost tail, no timeout within a second.
"""

from __future__ import annotations

from pathlib import Path

SYSCTLS = Path("/proc/sys/net/ipv4")

RTO_MIN_S = 1.0
"""As long as a queue of 6 MB lasts at 50 Mbit/s; by the kernel's 0.2 s a sender gives up on what only waits.
Where a frame is lost after all, to a full queue or the kernel's list of packets taken in (1,000 by default,
net.core.netdev_max_backlog), it may cost so long."""

FIRST_FRAMES = 2
"""A connection begins with so many (the kernel: ten), or those of hundreds at once overrun that list."""

RTO_MIN = 13
"""RTAX_RTO_MIN of linux/rtnetlink.h: by its bit TCP knows that a route's value is to be kept."""

METRICS = {"lock": 1 << RTO_MIN, "rto_min": round(RTO_MIN_S * 1e3), "initcwnd": FIRST_FRAMES}
"""Of a route, for the kernel: milliseconds, frames."""


def credit_here(receive_buffer_B: int) -> None:
    """For connections opened from now on in the namespace that this thread is in (ip-sysctl.rst)."""
    settings = {
        "tcp_congestion_control": "reno",
        "tcp_moderate_rcvbuf": "0",
        "tcp_rmem": f"{receive_buffer_B} {receive_buffer_B} {receive_buffer_B}",
        "tcp_early_retrans": "0",
    }
    for name, value in settings.items():
        (SYSCTLS / name).write_text(value)
