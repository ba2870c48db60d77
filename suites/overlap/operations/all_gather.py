"""All-gather of small messages between processes of one machine, and flash-decode, which ends with one.

The low-latency protocol: a word of 8 bytes has 4 bytes of data and 4 of a flag, the number of the call.
Aligned words are stored and loaded whole, so a copy that has the flag has the data. Words are written in two
buffers in turn: a rank writes one again only two calls later, when all ranks have read it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import Tensor

from suites.overlap.operations.collectives import RankShare, worst_error
from suites.overlap.symmetric.heap import SignalTimeout, SymmetricHeap
from suites.overlap.workload import DECODE_HEAD_SIZE as HEAD_SIZE
from suites.overlap.workload import DECODE_HEADS as HEADS
from suites.overlap.workload import Subject

POLLS = 256  # reads of a message's last word before a rank pauses and looks at the clock

PAUSE_S = 2e-5

Words = numpy.ndarray[Any, numpy.dtype[numpy.uint32]]


class Gather:
    """An all-gather of `elements` fp32 numbers per rank."""

    def __init__(self, subject: Subject, heap: SymmetricHeap, elements: int, timeout_s: float = 30.0) -> None:
        self.heap, self.ranks, self._timeout_s = heap, heap.ranks, timeout_s
        self._low_latency = subject.gather == "low_latency"
        self.gathered = torch.empty(heap.ranks, elements)
        self._result = self.gathered.numpy().view(numpy.uint32)
        slots = heap.tensor((2, heap.ranks, elements), torch.int64)
        self._slots = [heap.at_rank(slots, rank).numpy().view(numpy.uint32) for rank in range(heap.ranks)]
        self._words = numpy.zeros(2 * elements, dtype=numpy.uint32)
        self._call = 0

    def __call__(self, message: Tensor) -> Tensor:
        """Return all ranks' messages (ranks, elements); raises `SignalTimeout`."""
        if not self._low_latency:
            dist.all_gather_into_tensor(self.gathered.view(-1), message)
            return self.gathered
        self._call += 1
        buffer, rank, words = self._call % 2, self.heap.rank, self._words
        words[0::2] = message.numpy().view(numpy.uint32)
        words[1::2] = self._call
        for peer in range(self.ranks):
            if peer != rank:
                self._slots[peer][buffer, rank] = words
        self._result[rank] = words[0::2]
        for peer in range(self.ranks):
            if peer != rank:
                self._result[peer] = self._arrived(self._slots[rank][buffer, peer], peer)
        return self.gathered

    def _arrived(self, slot: Words, peer: int) -> Words:
        """Wait for a peer's words, copy each of them once, and return the data of the copies."""
        call, until_s = self._call, time.monotonic() + self._timeout_s
        while True:
            for _ in range(POLLS):
                if slot[-1] == call:
                    words = slot.copy()
                    if (words[1::2] == call).all():
                        return words[0::2]
            time.sleep(PAUSE_S)  # where ranks share a core, the peer needs it
            if time.monotonic() > until_s:
                raise SignalTimeout(
                    f"rank {self.heap.rank} waited {self._timeout_s:g} s for the last word of rank {peer} to "
                    f"have flag {call}; it has {slot[-1]}"
                )


class SmallAllGather(RankShare):
    """The all-gather alone."""

    def __init__(self, subject: Subject, heap: SymmetricHeap) -> None:
        super().__init__(subject, heap)
        elements = self.workload.message_elements
        self._message = self.values("message", self.rank, elements)
        self._gather = Gather(subject, heap, elements)
        self.received = self._gather.gathered
        self.sent_B = float((self.ranks - 1) * self._message.nbytes)

    def run(self, chunks: int) -> None:
        """Gather once."""
        self._gather(self._message)

    def compute(self) -> None:
        """Do nothing."""

    def communicate(self, chunks: int) -> None:
        """Gather once."""
        self._gather(self._message)

    def error(self) -> float:
        """Compare with every rank's message, bit for bit."""
        messages = [self.values("message", one, *self._message.shape) for one in range(self.ranks)]
        return 0.0 if torch.equal(self._gather.gathered, torch.stack(messages)) else 1.0


class TimedFlashDecode(SmallAllGather):
    """Attention of one query per sequence over keys and values divided over ranks, then an all-gather.

    q (B, heads, D), this rank's keys and values (B, heads, kv_len, D). Outputs (B, heads, D) and log-sum-exp
    (B, heads) go to all ranks, which add them by their weights.
    """

    def __init__(self, subject: Subject, heap: SymmetricHeap) -> None:
        super().__init__(subject, heap)
        shape = self._shape = (self.workload.batch, HEADS, self.workload.kv_len, HEAD_SIZE)
        self._q = self.values("q", 0, shape[0], HEADS, 1, HEAD_SIZE)
        self._k, self._v = self.values("k", self.rank, *shape), self.values("v", self.rank, *shape)
        self._outputs = self._message.view(shape[0], HEADS, HEAD_SIZE + 1)
        self._y = torch.empty(0)

    def run(self, chunks: int) -> None:
        """Attend to the own part, gather, and combine."""
        self.compute()
        parts = self._gather(self._message).view(self.ranks, *self._outputs.shape)
        weights = parts[..., -1].softmax(0)
        self._y = (parts[..., :-1] * weights[..., None]).sum(0)

    def compute(self) -> None:
        """Attend to the own part."""
        scores = (self._q @ self._k.transpose(-1, -2)).squeeze(2) / HEAD_SIZE**0.5
        self._outputs[..., -1] = scores.logsumexp(-1)
        self._outputs[..., :-1] = (scores.softmax(-1)[:, :, None] @ self._v).squeeze(2)

    def error(self) -> float:
        """Compare with attention over all keys in float64."""
        k, v = (
            torch.cat([self.values(name, one, *self._shape) for one in range(self.ranks)], 2).double()
            for name in ("k", "v")
        )
        expected = torch.nn.functional.scaled_dot_product_attention(self._q.double(), k, v)
        return worst_error(self._y, expected.squeeze(2))
