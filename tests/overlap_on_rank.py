"""What the ranks of tests/test_overlap.py are asked to do."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

from suites.overlap.one_sided import OneSided
from suites.overlap.symmetric.heap import SignalTimeout


def exchange(state: dict[str, Any], sizes: list[int], in_turn: bool) -> list[bool]:
    """Put numbers of each size into every peer's buffer; return whether all peers' came, in their order."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    link = OneSided("127.0.0.1")
    whole = torch.zeros(ranks, sum(sizes))
    buffer, arrived = link.buffer(whole), link.signals(ranks)
    dist.barrier()
    parts = [torch.full((size,), float(rank * 1000 + number)) for number, size in enumerate(sizes)]
    for step in range(1, ranks):
        first = rank * sum(sizes)
        for part in parts:
            link.put((rank + step) % ranks, buffer, 4 * first, part, arrived[rank], in_turn)
            first += len(part)
    right = []
    for peer in range(ranks):
        if peer != rank:
            first = 0
            for number, size in enumerate(sizes):
                link.wait(arrived[peer], number + 1)
                expected = float(peer * 1000 + number)
                right.append(bool((whole[peer, first : first + size] == expected).all()))
                first += size
    dist.barrier()
    link.close()
    return right


def wait_in_vain(state: dict[str, Any]) -> str:
    """Return what a wait for a signal that nobody sets raises."""
    link = OneSided("127.0.0.1", timeout_s=0.3)
    signals = link.signals(3)
    try:
        link.wait(signals[2], 5)
    except SignalTimeout as error:
        return str(error)
    return ""


def lose_a_peer(state: dict[str, Any]) -> str:
    """Return what a wait raises while the last rank's connections end; at once, not after the limit."""
    link = OneSided("127.0.0.1", timeout_s=60)
    (signal,) = link.signals(1)
    if dist.get_rank() == dist.get_world_size() - 1:
        link.close()
        return ""
    begin_s = time.monotonic()
    try:
        link.wait(signal, 1)
    except SignalTimeout as error:
        return str(error) if time.monotonic() - begin_s < 30 else "too late"
    return ""


def threads(state: dict[str, Any]) -> int:
    """Return how many threads this process has."""
    return len(os.listdir("/proc/self/task"))
