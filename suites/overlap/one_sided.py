"""One-sided communication over TCP: a rank puts data into a peer's memory and sets a signal there.

The counterpart of `suites.overlap.symmetric` where ranks share no memory. Threads stay in the kernel while
the link is busy, without Python's lock, and leave the processor to the computation. Ranks register their
buffers in the same order, which names them.
"""

from __future__ import annotations

import fcntl
import queue
import socket
import struct
import termios
import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from suites.overlap.symmetric.heap import SignalTimeout

HEADER = struct.Struct("<iiqq")
"""Header of a message: number of the buffer, number of the signal, first byte, count of bytes."""

TIMEOUT_S = 60.0


PAUSE_S = 1e-4
"""How often a sender looks whether the link has carried what it sent to the peer before."""


class _Put(NamedTuple):
    connection: socket.socket
    header: bytes
    data: memoryview


class OneSided:
    """Connections to all peers, the buffers that they may write, and signals; a collective constructor.

    Puts to one peer arrive in their order. A thread per peer sends, or one thread for puts in turn; puts of
    both kinds to one peer must not be under way at once.
    """

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        self.rank, self.ranks, self._timeout_s = dist.get_rank(), dist.get_world_size(), timeout_s
        self._buffers: list[memoryview] = []
        self._signals: list[int] = []
        self._changed = threading.Condition()
        self._failed = ""
        self._is_closed = False
        self._senders: list[threading.Thread] = []
        self._receivers: list[threading.Thread] = []
        self.arrivals: list[tuple[float, float]] | None = None  # begins and ends, where a run is recorded
        self._from: list[socket.socket] = []
        self._to: dict[int, socket.socket] = {}
        self._in_turn = self._sender()
        self._queues: dict[int, queue.SimpleQueue[_Put | None]] = {}
        with socket.create_server((address, 0), backlog=self.ranks) as server:
            ports: list[Any] = [None] * self.ranks
            dist.all_gather_object(ports, (address, server.getsockname()[1]))
            for peer in range(self.ranks):
                if peer != self.rank:
                    self._to[peer] = socket.create_connection(ports[peer], timeout=self._timeout_s)
                    self._to[peer].settimeout(None)
                    self._to[peer].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._queues[peer] = self._sender()
            server.settimeout(self._timeout_s)
            for _ in range(self.ranks - 1):
                connection, _ = server.accept()
                connection.settimeout(None)
                self._from.append(connection)
                receiver = threading.Thread(target=self._receive, args=(connection,), daemon=True)
                self._receivers.append(receiver)
                receiver.start()

    def buffer(self, tensor: Tensor) -> int:
        """Let peers write to a contiguous tensor; return its number, the same on every rank."""
        self._buffers.append(bytes_of(tensor))
        return len(self._buffers) - 1

    @property
    def buffers(self) -> int:
        """Return how many buffers have been registered, released ones too: the next one's number."""
        return len(self._buffers)

    def release(self, buffer: int) -> None:
        """Refer to a buffer's memory no more, when no put to it is under way; no number is used again."""
        self._buffers[buffer] = memoryview(b"")

    def signals(self, count: int) -> range:
        """Return the numbers of new signals, all 0."""
        first = len(self._signals)
        self._signals.extend([0] * count)
        return range(first, first + count)

    def put(
        self, peer: int, buffer: int, first_B: int, source: Tensor, signal: int, in_turn: bool = False
    ) -> None:
        """Begin to write a contiguous tensor into a peer's buffer; then add one to its signal.

        The tensor must not change until the peer has it. `in_turn`: after all earlier puts in turn, to
        whichever peer. Raises ValueError once the link is closed.
        """
        if self._is_closed:
            raise ValueError(f"rank {self.rank} has closed its link and cannot put")
        data = bytes_of(source)
        one = _Put(self._to[peer], HEADER.pack(buffer, signal, first_B, data.nbytes), data)
        (self._in_turn if in_turn else self._queues[peer]).put(one)

    def wait(self, signal: int, value: int) -> int:
        """Wait until the signal is at least `value` and return what it is; raises `SignalTimeout`."""
        if (current := self._signals[signal]) >= value:  # without the lock: it only grows
            return current
        until_s = time.monotonic() + self._timeout_s
        with self._changed:
            while self._signals[signal] < value:
                left_s = until_s - time.monotonic()
                if self._failed or left_s <= 0 or not self._changed.wait(left_s):
                    waited = f"its signal {signal} to be {value}; it is {self._signals[signal]}"
                    if self._failed:
                        raise SignalTimeout(f"rank {self.rank} {self._failed} while it waited for {waited}")
                    raise SignalTimeout(f"rank {self.rank} waited {self._timeout_s:g} s for {waited}")
            return self._signals[signal]

    def reset(self) -> None:
        """Set all signals to 0 between two calls, when no put is under way."""
        self._signals[:] = [0] * len(self._signals)

    def close(self) -> None:
        """Send the puts so far, then end the threads and the connections, and release all buffers.

        Not collective: this rank receives nothing more. Afterwards all puts are with the kernel, which
        delivers them. Raises TimeoutError, with everything ended, if peers have not taken them in time. Once
        a connection has been lost, puts may be dropped.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for puts in (self._in_turn, *self._queues.values()):
            puts.put(None)
        until_s = time.monotonic() + self._timeout_s
        for sender in self._senders:
            sender.join(max(until_s - time.monotonic(), 0))
        is_late = any(sender.is_alive() for sender in self._senders) and not self._failed
        self._fail("closed its link")
        for connection in (*self._to.values(), *self._from):
            with suppress(OSError):  # the peer may have ended it
                connection.shutdown(socket.SHUT_RDWR)  # ends a call that a thread waits in; a close does not
        for thread in (*self._senders, *self._receivers):
            thread.join(TIMEOUT_S)  # at once, whatever the link's limit
        for connection in (*self._to.values(), *self._from):
            connection.close()
        for buffer in range(len(self._buffers)):
            self.release(buffer)
        if is_late:
            raise TimeoutError(
                f"rank {self.rank} waited {self._timeout_s:g} s for its peers to take its puts"
            )

    def _sender(self) -> queue.SimpleQueue[_Put | None]:
        puts: queue.SimpleQueue[_Put | None] = queue.SimpleQueue()
        self._senders.append(threading.Thread(target=self._send, args=(puts,), daemon=True))
        self._senders[-1].start()
        return puts

    def _send(self, puts: queue.SimpleQueue[_Put | None]) -> None:
        last: socket.socket | None = None
        try:
            while (one := puts.get()) is not None:
                while last and last is not one.connection and unsent_B(last) and not self._failed:
                    time.sleep(PAUSE_S)
                last = one.connection
                last.sendall(one.header)
                last.sendall(one.data)
        except OSError as error:
            self._fail(f"lost a connection ({error.strerror or error})")

    def _receive(self, connection: socket.socket) -> None:
        header = bytearray(HEADER.size)
        try:
            while connection.recv_into(header, HEADER.size, socket.MSG_WAITALL) == HEADER.size:
                begin_s = 0.0 if self.arrivals is None else time.perf_counter()
                buffer, signal, first_B, size_B = HEADER.unpack(header)
                target = self._buffers[buffer][first_B : first_B + size_B]
                if len(target) != size_B:
                    raise OSError(f"a put of {size_B} B at {first_B} B is not within its buffer {buffer}")
                while len(target):
                    received_B = connection.recv_into(target, len(target), socket.MSG_WAITALL)
                    if not received_B:
                        break
                    target = target[received_B:]
                else:
                    if self.arrivals is not None and begin_s:
                        self.arrivals.append((begin_s, time.perf_counter()))
                    with self._changed:
                        self._signals[signal] += 1
                        self._changed.notify_all()
        except OSError as error:
            self._fail(f"lost a connection ({error.strerror or error})")
        else:
            self._fail("lost its connection to a peer")

    def _fail(self, why: str) -> None:
        with self._changed:
            self._failed = self._failed or why
            self._changed.notify_all()


def unsent_B(connection: socket.socket) -> int:
    """Return the bytes that the peer has not acknowledged (tcp(7), SIOCOUTQ)."""
    count = bytearray(4)
    fcntl.ioctl(connection, termios.TIOCOUTQ, count)
    return int.from_bytes(count, "little")


def bytes_of(tensor: Tensor) -> memoryview:
    """Return a contiguous CPU tensor's memory."""
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} is not contiguous")
    data: Any = tensor.view(-1).view(torch.uint8).numpy()
    return memoryview(data)
