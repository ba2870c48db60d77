"""The functions that a rank of the fabric suite runs, called by name (`harness.instruments.distributed`)."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from harness.instruments.distributed.rank_worker import RankState
from harness.records import WrongResult

NUMBER_B = 4  # bytes of a number: fp32

KINDS = ("allreduce", "alltoall")

MESSAGES = 16
"""Messages into which a rank cuts what it sends to one other in a step, or as many as there are queue pairs.
Where each is split over N queue pairs, MESSAGES / N, and two at least."""


def connect(state: RankState, order: list[int], count: int, timeout_s: float) -> list[list[list[Any]]]:
    """Create `count` groups in which rank `order[i]` is the i-th, each with its own connections.

    Returns those of each group: [own port, other's address, other's port]. torch's new_group sorts ranks.
    """
    state.pop("groups", None)
    state["made"] = state.get("made", -1) + 1
    place = order.index(dist.get_rank())
    groups, connections, known = [], [], set[Any](established())
    for number in range(count):
        store = PrefixStore(f"fabric/{state['made']}/{number}", state["store"])
        limit = timedelta(seconds=timeout_s)
        groups.append(dist.ProcessGroupGloo(store, place, len(order), limit))
        now = established()
        connections.append([list(one) for one in now if one not in known])
        known.update(now)
    state["groups"], state["place"] = groups, place
    return connections


def established() -> list[tuple[int, str, int]]:
    """Return this process's TCP connections: own port, other's address, other's port."""
    connections = psutil.Process(os.getpid()).net_connections("tcp")
    return [
        (one.laddr.port, one.raddr.ip, one.raddr.port)
        for one in connections
        if one.status == psutil.CONN_ESTABLISHED and one.family == socket.AF_INET
    ]


def collective(state: RankState, kind: str, buffer_B: int, pairs: int, split: bool, in_flight: int) -> float:
    """Return the seconds of one collective of that many bytes per rank, over the first `pairs` groups.

    Messages take the groups in turn, or with `split` all of them. gloo sends none before its receiver has
    posted one: a ring has `in_flight` of them posted, as NCCL's connections have. AlltoAll posts all before
    its clock starts: gloo notifies a sender on the data connection (gloo/transport/tcp/pair.cc), where behind
    data the notice would come too late. Raises `WrongResult` where the received data is not what was sent.
    """
    groups, place = state["groups"][:pairs], state["place"]
    size = groups[0].size()
    given = payload(place, size, buffer_B // NUMBER_B, kind)
    count = messages(pairs, split)
    if kind == "allreduce":
        taken_s, result = ring(groups, given.view(size, -1), count, split, in_flight), given
    else:
        taken_s, result = alltoall(groups, given.view(size, -1), count, split)
    validate_result(kind, result, place, size)
    return taken_s


def messages(pairs: int, split: bool) -> int:
    """Return the number of messages to one other rank in a step."""
    return max(MESSAGES // pairs, 2) if split else max(MESSAGES, pairs)


def parts(groups: list[Any], number: int, message: Tensor, split: bool) -> list[tuple[Any, Tensor]]:
    """Return the parts of the message of that number, each with the group over which it goes."""
    if not split:
        return [(groups[number % len(groups)], message)]
    return list(zip(groups, message.chunk(len(groups)), strict=True))


def ring(groups: list[Any], chunks: Tensor, count: int, split: bool, in_flight: int) -> float:
    """Sum `chunks` (a row per rank) over all ranks in place and return the seconds.

    A ring of reduce-scatter and all-gather, each step's chunk in `count` messages; ranks send to the one
    before them. A message is admitted once the one `in_flight` before it has been added, and sent once its
    numbers are there.
    """
    size, place = chunks.shape[0], groups[0].rank()
    steps, after, before = 2 * (size - 1), (place + 1) % size, (place - 1) % size
    fresh = torch.empty(size - 1, chunks.shape[1])

    def received(step: int) -> Tensor:
        reduced = step < size - 1
        return chunks[(place + step + (2 if reduced else 2 - size)) % size]

    def message(row: Tensor, number: int) -> Tensor:
        return row.chunk(count)[number % count]

    def receive(number: int) -> list[Any]:
        step = number // count
        target = message(fresh[step] if step < size - 1 else received(step), number)
        return [group.recv([part], after, number) for group, part in parts(groups, number, target, split)]

    def send(number: int) -> list[Any]:
        # What came in the step before; in the first step, the next rank's own chunk.
        given = message(received(number // count - 1), number)
        return [group.send([part], before, number) for group, part in parts(groups, number, given, split)]

    total = steps * count
    receives = {number: receive(number) for number in range(min(in_flight, total))}
    for group in groups:
        group.barrier().wait()
    begin_s = time.perf_counter()
    sends = [work for number in range(count) for work in send(number)]
    for number in range(total):
        for work in receives.pop(number):
            work.wait()
        step = number // count
        if step < size - 1:
            message(received(step), number).add_(message(fresh[step], number))
        if number + in_flight < total:
            receives[number + in_flight] = receive(number + in_flight)
        if number + count < total:
            sends += send(number + count)
    for work in sends:
        work.wait()
    return time.perf_counter() - begin_s


def alltoall(groups: list[Any], given: Tensor, count: int, split: bool) -> tuple[float, Tensor]:
    """Send a row of `given` to each other rank; return the seconds, and a row from each."""
    result = torch.empty_like(given)
    result[groups[0].rank()] = given[groups[0].rank()]
    ways = [
        (number, other, group, sent, received)
        for number in range(count)
        for other in others(groups[0])
        for (group, sent), (_, received) in zip(
            parts(groups, number, given[other].chunk(count)[number], split),
            parts(groups, number, result[other].chunk(count)[number], split),
            strict=True,
        )
    ]
    works = []
    for group in groups:  # one after the other: over a thousand notices at once overrun the kernel
        works += [own.recv([into], other, number) for number, other, own, _, into in ways if own is group]
        group.barrier().wait()
    begin_s = time.perf_counter()
    works += [group.send([sent], other, number) for number, other, group, sent, _ in ways]
    for work in works:
        work.wait()
    return time.perf_counter() - begin_s, result


def payload(place: int, size: int, numbers: int, kind: str) -> Tensor:
    """Return what the rank at that place sends.

    It sends its place, or to each other rank its place and the receiver's.
    """
    if kind == "allreduce":
        return torch.full((numbers,), float(place + 1))
    whose = torch.arange(size).repeat_interleave(numbers // size)
    return (place * size + whose).float()


def others(group: Any) -> list[int]:
    """Return the other ranks, starting with the next one, so that not all send to the same rank first."""
    place, size = group.rank(), group.size()
    return [(place + step) % size for step in range(1, size)]


def validate_result(kind: str, result: Tensor, place: int, size: int) -> None:
    """Raise `WrongResult` where a sum or a piece differs from the closed formula."""
    if kind == "allreduce":
        expected = torch.full_like(result, size * (size + 1) / 2)
    else:
        column = torch.arange(size, dtype=torch.float32) * size + place
        expected = column[:, None].expand_as(result)
    if not torch.equal(result, expected):
        raise WrongResult(f"{kind}: the rank in place {place} has other numbers than it was sent")
