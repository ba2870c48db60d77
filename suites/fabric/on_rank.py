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

NUMBER_B = 4
"""Bytes of a number: fp32."""

KINDS = ("allreduce", "alltoall")

TAG = 0
"""Tag of all messages of one group: each two ranks exchange one in each direction."""


def connect(state: RankState, order: list[int], count: int, timeout_s: float) -> list[list[list[Any]]]:
    """Create `count` groups in which rank `order[i]` is the i-th, each with its own connections.

    Returns this rank's connections of each group: [own port, other's address, other's port]. torch's
    new_group sorts ranks, but a ring needs this order.
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


def collective(state: RankState, kind: str, buffer_B: int, pairs: int) -> float:
    """Return the seconds of one collective of that many bytes per rank, split over the first `pairs` groups.

    AlltoAll's receives are posted before its clock starts, as NCCL's receivers give credits. gloo notifies a
    sender on the data connection (gloo/transport/tcp/pair.cc); behind data the notice would come too late,
    and one of two ranks would wait for the other, as in gloo's own alltoall. Raises `WrongResult` where the
    received data is not what was sent.
    """
    groups, place = state["groups"][:pairs], state["place"]
    size = groups[0].size()
    given = payload(place, size, buffer_B // NUMBER_B, kind)
    parts = list(given.view(size, -1).chunk(pairs, dim=1)) if kind == "alltoall" else list(given.chunk(pairs))
    parts = [one.contiguous() for one in parts]
    results = [torch.empty_like(one) for one in parts] if kind == "alltoall" else parts
    split = list(zip(groups, parts, results, strict=True))
    works = []
    for group, _, result in split:  # one after the other: over a thousand notices at once overrun the kernel
        works += expect(kind, group, result)
        group.barrier().wait()
    begin_s = time.perf_counter()
    works += [work for one in split for work in begin(kind, *one)]
    for work in works:
        work.wait()
    taken_s = time.perf_counter() - begin_s
    validate_result(kind, results, place, size)
    return taken_s


def payload(place: int, size: int, numbers: int, kind: str) -> Tensor:
    """Return what the rank at that place sends.

    It sends its place, or to each other rank its place and the receiver's.
    """
    if kind == "allreduce":
        return torch.full((numbers,), float(place + 1))
    whose = torch.arange(size).repeat_interleave(numbers // size)
    return (place * size + whose).float()


def expect(kind: str, group: Any, result: Tensor) -> list[Any]:
    """Post AlltoAll's receives (a row of `result` from each other rank); none for a ring."""
    if kind == "allreduce":
        return []
    return [group.recv([result[other]], other, TAG) for other in others(group)]


def begin(kind: str, group: Any, given: Tensor, result: Tensor) -> list[Any]:
    """Start the collective: gloo's own ring, or a row of `given` to each other rank."""
    if kind == "allreduce":
        return [group.allreduce([result])]
    result[group.rank()] = given[group.rank()]
    return [group.send([given[other]], other, TAG) for other in others(group)]


def others(group: Any) -> list[int]:
    """Return the other ranks, starting with the next one, so that not all send to the same rank first."""
    place, size = group.rank(), group.size()
    return [(place + step) % size for step in range(1, size)]


def validate_result(kind: str, results: list[Tensor], place: int, size: int) -> None:
    """Raise `WrongResult` where a sum or a piece differs from the closed formula."""
    for result in results:
        if kind == "allreduce":
            expected = torch.full_like(result, size * (size + 1) / 2)
        else:
            column = torch.arange(size, dtype=torch.float32) * size + place
            expected = column[:, None].expand_as(result)
        if not torch.equal(result, expected):
            raise WrongResult(f"{kind}: the rank in place {place} has other numbers than it was sent")
