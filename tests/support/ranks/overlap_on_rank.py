"""What the ranks of tests/suites/overlap are asked to do with one-sided puts, and with a training step."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
import torch.distributed as dist
from places import PYTHONPATH

from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from suites.overlap.one_sided import HEADER, PAUSE_S, OneSided, unsent_B
from suites.overlap.operations import training_step
from suites.overlap.operations.all_gather import Gather
from suites.overlap.symmetric.heap import SymmetricHeap, shared_heaps
from suites.overlap.workload import Subject, Workload

State = dict[str, Any]


def pool_of(count: int, kind: type[RankPool] = RankPool) -> RankPool:
    place = RankLocation((), {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"})
    return kind([place] * count, "127.0.0.1")


def raised(act: Callable[[], object]) -> str:
    try:
        act()
    except (TimeoutError, ValueError) as error:
        return str(error)
    return ""


def exchange(state: State, sizes: list[int], in_turn: bool) -> list[bool]:
    """Put numbers of each size into every peer's buffer; return whether all peers' came, in their order."""
    link = OneSided("127.0.0.1")
    whole = torch.zeros(link.ranks, sum(sizes))
    buffer, arrived = link.buffer(whole), link.signals(link.ranks)
    dist.barrier()
    parts = [torch.full((size,), float(link.rank * 1000 + number)) for number, size in enumerate(sizes)]
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    peers = [(link.rank + step) % link.ranks for step in range(1, link.ranks)]
    for peer in peers:
        for first, part in zip(firsts, parts, strict=True):
            link.put(peer, buffer, 4 * (link.rank * sum(sizes) + first), part, arrived[link.rank], in_turn)
    right = []
    for peer in peers:
        for number, (first, size) in enumerate(zip(firsts, sizes, strict=True)):
            link.wait(arrived[peer], number + 1)
            right.append(bool((whole[peer, first : first + size] == peer * 1000 + number).all()))
    dist.barrier()
    link.close()
    return right


def wait_in_vain(state: State) -> str:
    """Return what a wait for a signal that nobody sets raises."""
    link = OneSided("127.0.0.1")
    link._timeout_s = 0.3  # of the wait alone, not of connecting
    signals = link.signals(3)
    return raised(lambda: link.wait(signals[2], 5))


def close_after_puts(state: State, in_turn: bool, count: int = 50, size: int = 100_000) -> bool:
    """Put more than sockets hold from rank 0 to all peers and close at once; return whether all arrived."""
    threads = threading.active_count()
    link = OneSided("127.0.0.1")
    whole = torch.zeros(count, size)
    buffer, (arrived,) = link.buffer(whole), link.signals(1)
    dist.barrier()
    if link.rank == 0:
        for number, part in enumerate(torch.arange(1.0, count + 1)[:, None].repeat(1, size)):
            for peer in range(1, link.ranks):
                link.put(peer, buffer, number * part.nbytes, part, arrived, in_turn)
        link.close()
    else:
        link.wait(arrived, count)
    dist.barrier()  # a link that closes ends the waits of all its peers
    link.close()
    is_whole = torch.equal(whole[:, 0], torch.arange(1.0, count + 1)) and bool((whole == whole[:, :1]).all())
    return (is_whole or link.rank == 0) and threading.active_count() == threads


def close_while_a_peer_takes_nothing(state: State, in_turn: bool) -> list[str]:
    """Return what rank 0's close and a later put raise while rank 1 receives no second put."""
    threads = threading.active_count()
    link = OneSided("127.0.0.1")
    whole = torch.zeros(1 << 24)  # more than sockets hold
    buffer, (arrived,) = link.buffer(whole), link.signals(1)
    dist.barrier()
    said = []
    if link.rank == 0:
        link._timeout_s = 0.3
        for peer in (1, 1, 2):
            link.put(peer, buffer, 0, whole, arrived, in_turn)
        said = [raised(link.close), raised(lambda: link.put(1, buffer, 0, whole, arrived))]
        said.append(f"{threading.active_count() - threads} threads")
        dist.barrier()
    else:
        with link._changed:  # which the receiver of a put needs
            dist.barrier()
    link.close()
    return said


def put_into_released_memory(state: State) -> list[Any]:
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
        seen.append(raised(lambda: link.wait(arrived, 1)))
    dist.barrier()
    link.close()
    return seen


def buffers_B(state: State) -> list[int]:
    return [len(one) for one in state["link"]._buffers]


class Dying:
    """A connection on which a put breaks off: the process is killed once the peer's kernel has half of it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def sendall(self, data: Any) -> None:
        is_header = len(data) == HEADER.size
        self._connection.sendall(data if is_header else data[: len(data) // 2])
        if not is_header:
            while unsent_B(self._connection):
                time.sleep(PAUSE_S)
            os.kill(os.getpid(), signal.SIGKILL)


def die_in_a_put(state: State, victim: int, in_turn: bool) -> list[Any]:
    """Kill the victim in a put to rank 0; return what waits raise, numbers that came, and if a close ends."""
    link = state.get("link") or OneSided("127.0.0.1")
    whole = torch.zeros(1000)
    buffer, (arrived,) = link.buffer(whole), link.signals(1)
    dist.barrier()
    if link.rank == victim:
        link._to[0] = Dying(link._to[0])
        link.put(0, buffer, 0, torch.ones(1000), arrived, in_turn)
        threading.Event().wait()
    said = raised(lambda: link.wait(arrived, 1))
    threads = threading.active_count()
    link.put(victim, buffer, 0, whole, arrived, in_turn)
    link.close()
    return [said, int(whole.sum()), threading.active_count() < threads]  # all is received now


def die_in_a_message(state: State, victim: int) -> str:
    subject = Subject(Workload(operation="all_gather"), 0, gather="low_latency")
    heap = SymmetricHeap(shared_heaps(1 << 16), dist.get_rank())
    gather = Gather(subject, heap, 16, timeout_s=0.5)
    if heap.rank == victim:
        for peer in range(heap.ranks):
            gather._slots[peer][1, victim, :16] = 1  # half of the words, with their flags
        os.kill(os.getpid(), signal.SIGKILL)
    return raised(lambda: gather(torch.zeros(16)))


def faulty_errors(state: State, key: str, fault: str, chunks: int) -> list[float]:
    """Return a training step's error for each collective with a fault: "stale" or "swapped"."""
    step, errors = state[key], []
    layers = [layer for layers in step.layers for layer in layers]
    for collective in [one for layer in layers for one in (layer.gather, layer.scatter)]:
        for _ in range(2):  # the step before the faulty one has the other batch
            run(step, chunks)
        with {"stale": stale, "swapped": swapped}[fault](collective):
            run(step, chunks)
        errors.append(step.error())
    return errors


@contextmanager
def stale(collective: Any) -> Iterator[None]:
    """Nothing arrives, and nothing waits: the step reads what the one before has left."""
    link, wait, signals = collective.link, collective.link.wait, collective._arrived
    link.wait = lambda signal, value: value if signal in signals else wait(signal, value)
    collective._put = lambda *given: None
    yield
    del link.wait, collective._put


@contextmanager
def swapped(collective: Any) -> Iterator[None]:
    """Chunks go where those at equal distance from the other end belong."""
    put, first = collective._put, collective.rank * collective.rows

    def elsewhere(peer: int, buffer: int, row: int, source: torch.Tensor, signal: int) -> None:
        put(peer, buffer, 2 * first + collective.rows - row - len(source), source, signal)

    collective._put = elsewhere
    yield
    del collective._put


def run(step: Any, chunks: int) -> None:
    step.link.reset()
    dist.barrier()
    step.run(chunks)


def update_errors(state: State, key: str) -> list[float]:
    """Return how far each weight is from the last one minus its gradient."""
    step = state[key]
    before = [weight.detach().clone() for block in step.blocks for weight in block]
    rate, training_step.LEARNING_RATE = training_step.LEARNING_RATE, 1.0
    try:
        run(step, 1)
    finally:
        training_step.LEARNING_RATE = rate
    pairs = zip((weight for block in step.blocks for weight in block), before, strict=True)
    return [float((new - (old - new.grad)).abs().max()) + float(torch.equal(new, old)) for new, old in pairs]
