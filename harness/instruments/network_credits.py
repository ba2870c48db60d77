"""Inside a network of namespaces: TCP as a sender with credits, on links that lose nothing.

Used by `harness.instruments.network_inside`. A collective library hands its receiver's buffers out before
data is sent, and RoCE's links pause instead of dropping. TCP as it comes takes what it can get, guesses at
losses where a queue is long, and sends again: links then carry what a fluid would not, and shares are uneven.
Here a connection has at most its receiver's small, fixed buffer under way, grows to it at once but for slow
start (reno), and sends nothing again that only waits: no probe for a lost tail, no timeout within a second.
"""

from __future__ import annotations

from pathlib import Path

SYSCTLS = Path("/proc/sys/net/ipv4")

RTO_MIN_S = 1.0
"""More than any queue here holds. Where a frame is lost after all, it costs so long."""

RTO_MIN = 13
"""RTAX_RTO_MIN of linux/rtnetlink.h: by its bit TCP knows that a route's value is to be kept."""

METRICS = {"lock": 1 << RTO_MIN, "rto_min": round(RTO_MIN_S * 1e3)}
"""Of a route, for the kernel: milliseconds."""


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
