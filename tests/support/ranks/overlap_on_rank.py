"""What the ranks of test_overlap.py and test_overlap_bad_input.py are asked to do."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import weakref
from typing import Any

import numpy
import torch
import torch.distributed as dist

from suites.overlap.one_sided import HEADER, PAUSE_S, OneSided, unsent_B
from suites.overlap.operations.all_gather import Gather
from suites.overlap.symmetric.heap import SignalTimeout, SymmetricHeap, shared_heaps
from suites.overlap.workload import Subject, Workload


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
    link = OneSided("127.0.0.1")
    link._timeout_s = 0.3  # of the wait alone, not of connecting
    signals = link.signals(3)
    try:
        link.wait(signals[2], 5)
    except SignalTimeout as error:
        return str(error)
    return ""


def lose_a_peer(state: dict[str, Any]) -> str:
    """Return what a wait raises while the last rank's connections end; at once, not after the limit."""
    link = OneSided("127.0.0.1", timeout_s=60)
    (arrived,) = link.signals(1)
    if dist.get_rank() == dist.get_world_size() - 1:
        link.close()
        return ""
    begin_s = time.monotonic()
    try:
        link.wait(arrived, 1)
    except SignalTimeout as error:
        return str(error) if time.monotonic() - begin_s < 30 else "too late"
    return ""


def close_after_puts(state: dict[str, Any], in_turn: bool, count: int = 50, size: int = 100_000) -> bool:
    """Put from rank 0 to all peers and close the link at once; return whether all arrived, all threads ended.

    Together the puts are larger than what sockets hold.
    """
    threads = threading.active_count()
    link = OneSided("127.0.0.1")
    whole = torch.zeros(count, size)
    buffer, (arrived,) = link.buffer(whole), link.signals(1)
    dist.barrier()
    if dist.get_rank() == 0:
        parts = [torch.full((size,), float(number)) for number in range(1, count + 1)]
        for number, part in enumerate(parts):
            for peer in range(1, link.ranks):
                link.put(peer, buffer, number * part.nbytes, part, arrived, in_turn)
        link.close()
    else:
        link.wait(arrived, count)
    dist.barrier()  # a link that closes ends the waits of all its peers
    link.close()
    is_whole = torch.equal(whole[:, 0], torch.arange(1.0, count + 1)) and bool((whole == whole[:, :1]).all())
    return (is_whole or link.rank == 0) and threading.active_count() == threads


def close_while_a_peer_takes_nothing(state: dict[str, Any], in_turn: bool) -> list[str]:
    """Return what rank 0's close and a later put raise while rank 1 receives no second put."""
    threads = threading.active_count()
    link = OneSided("127.0.0.1")
    whole = torch.zeros(1 << 24)  # more than sockets hold
    buffer, (arrived,) = link.buffer(whole), link.signals(1)
    dist.barrier()
    raised = []
    if dist.get_rank() == 0:
        link._timeout_s = 0.3
        for peer in (1, 1, 2):
            link.put(peer, buffer, 0, whole, arrived, in_turn)
        for act in (link.close, lambda: link.put(1, buffer, 0, whole, arrived)):
            try:
                act()
            except (TimeoutError, ValueError) as error:
                raised.append(str(error))
        raised.append(f"{threading.active_count() - threads} threads")
        dist.barrier()
    else:
        with link._changed:  # which the receiver of a put needs
            dist.barrier()
    link.close()
    return raised


def put_into_released_memory(state: dict[str, Any]) -> list[Any]:
    """Return whether a link keeps memory until its release, the next number, and what a put to it raises."""
    link = OneSided("127.0.0.1")
    array = numpy.zeros(10, dtype=numpy.float32)
    memory = weakref.ref(array)
    buffer, (arrived,) = link.buffer(torch.from_numpy(array)), link.signals(1)
    del array
    seen: list[Any] = [memory() is not None]
    link.release(buffer)
    seen += [memory() is not None, link.buffer(torch.zeros(1))]
    dist.barrier()
    if link.rank:
        link.put(0, buffer, 0, torch.ones(10), arrived)
    else:
        try:
            link.wait(arrived, 1)
        except SignalTimeout as error:
            seen.append(str(error))
    dist.barrier()
    link.close()
    return seen


def buffers_B(state: dict[str, Any]) -> list[int]:
    """Return the bytes of all buffers that the suite's link refers to."""
    return [len(one) for one in state["link"]._buffers]


class Dying:
    """A connection on which a put breaks off: the process is killed once the peer's kernel has half of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def sendall(self, data: Any) -> None:
        """Send a header, or half of the data."""
        is_header = len(data) == HEADER.size
        self._connection.sendall(data if is_header else data[: len(data) // 2])
        if not is_header:
            while unsent_B(self._connection):
                time.sleep(PAUSE_S)
            os.kill(os.getpid(), signal.SIGKILL)


def die_in_a_put(state: dict[str, Any], victim: int, in_turn: bool) -> list[Any]:
    """Kill the victim in the middle of a put to rank 0; return what the others' waits raise.

    Also how many numbers came, and whether a put to the victim and the link's close end.
    """
    link = state.get("link") or OneSided("127.0.0.1")
    whole = torch.zeros(1000)
    buffer, (arrived,) = link.buffer(whole), link.signals(1)
    dist.barrier()
    if link.rank == victim:
        link._to[0] = Dying(link._to[0])
        link.put(0, buffer, 0, torch.ones(1000), arrived, in_turn)
        threading.Event().wait()
    try:
        link.wait(arrived, 1)
    except SignalTimeout as error:
        threads = threading.active_count()
        link.put(victim, buffer, 0, whole, arrived, in_turn)
        link.close()
        return [str(error), int(whole.sum()), threading.active_count() < threads]  # all is received now
    return []


def die_in_a_message(state: dict[str, Any], victim: int) -> str:
    """Kill the victim in the middle of a low-latency message; return what the others raise."""
    subject = Subject(Workload(operation="all_gather"), 0, gather="low_latency")
    heap = SymmetricHeap(shared_heaps(1 << 16), dist.get_rank())
    gather = Gather(subject, heap, 16, timeout_s=0.5)
    if heap.rank == victim:
        for peer in range(heap.ranks):
            gather._slots[peer][1, victim, :16] = 1  # half of the words, with their flags
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        gather(torch.zeros(16))
    except SignalTimeout as error:
        return str(error)
    return ""
