"""A GEMM whose shards are exchanged in a schedule's order: from messages to the end of each rank.

An all-gather is pulled: the GEMM begins with the own shard and takes each chunk when it has arrived. A
reduce-scatter is pushed: the GEMM computes the chunks of other ranks first, and each leaves when it is ready.
Additions of the reduce-scatter take no time.
"""

from __future__ import annotations

from typing import NamedTuple

from suites.overlap_schedule.links import Carried, Links, Stream, Transfer, carry
from suites.overlap_schedule.model import Subject

Chunk = tuple[int, int]
"""A part of a shard: the peer, and the number of the part."""


class ScheduleResult(NamedTuple):
    """What one schedule takes on the links of a workload."""

    finish_s: list[float]  # of each rank
    communication_s: float  # from the first message to the end of the last
    carried: Carried

    @property
    def time_s(self) -> float:
        """Return when the last rank has ended."""
        return max(self.finish_s)


def peers(subject: Subject, rank: int) -> list[int]:
    """Return the other ranks in the order in which a rank exchanges shards with them."""
    ranks = subject.workload.ranks
    if subject.order == "same":
        return [peer for peer in range(ranks) if peer != rank]
    return [(rank + step) % ranks for step in range(1, ranks)]


def chunks_in_order(subject: Subject, rank: int) -> list[Chunk]:
    """Return the chunks of other ranks in the order in which the GEMM takes or makes them."""
    order, parts = peers(subject, rank), range(subject.sub_chunks)
    if subject.at_once:
        return [(peer, part) for part in parts for peer in order]
    return [(peer, part) for peer in order for part in parts]


def streams_of(subject: Subject, rank: int) -> list[list[Chunk]]:
    """Return the chunks of each of a rank's streams: one for each peer, or one for all."""
    every = chunks_in_order(subject, rank)
    if not subject.at_once:
        return [every]
    return [[chunk for chunk in every if chunk[0] == peer] for peer in peers(subject, rank)]


def simulate(subject: Subject) -> ScheduleResult:
    """Return what the subject's schedule takes; raises `Unavailable` where rates are missing."""
    given = subject.workload
    links = Links(given.topology, given.ranks, subject.rate_B_per_s)
    gathers = given.operation == "allgather_gemm"
    ready = {} if gathers else {rank: _ready_s(subject, rank) for rank in range(given.ranks)}
    streams: list[Stream] = []
    chunks: list[tuple[int, Chunk]] = []  # of each message in the order of the streams: its rank and chunk
    for rank in range(given.ranks):
        for stream in streams_of(subject, rank):
            chunks += [(rank, chunk) for chunk in stream]
            streams.append([_transfer(subject, rank, chunk, ready.get(rank)) for chunk in stream])
    carried = carry(streams, links, given.message_s)
    ends = dict(zip(chunks, (end for stream in carried.end_s for end in stream), strict=True))
    begin_s = min(transfer.ready_s for stream in streams for transfer in stream)
    finish = _gathered if gathers else _reduced
    finish_s = [finish(subject, rank, ends) for rank in range(given.ranks)]
    return ScheduleResult(finish_s, max(ends.values()) - begin_s, carried)


def _chunk_s(subject: Subject) -> float:
    """Return the seconds of the GEMM on one chunk: its share of all rows."""
    return subject.workload.compute_time_s() / (subject.workload.ranks * subject.sub_chunks)


def _ready_s(subject: Subject, rank: int) -> dict[Chunk, float]:
    """Return when a rank's GEMM has made each chunk of other ranks; its own shard is last."""
    if not subject.overlapped:
        return dict.fromkeys(chunks_in_order(subject, rank), subject.workload.compute_time_s())
    each_s = _chunk_s(subject)
    return {chunk: (place + 1) * each_s for place, chunk in enumerate(chunks_in_order(subject, rank))}


def _transfer(subject: Subject, rank: int, chunk: Chunk, ready: dict[Chunk, float] | None) -> Transfer:
    """Return the message of one chunk: pulled from the peer, or pushed to it once the GEMM has made it."""
    size_B = subject.workload.shard_B / subject.sub_chunks
    if ready is None:
        return Transfer(chunk[0], rank, size_B)
    return Transfer(rank, chunk[0], size_B, ready[chunk])


def _gathered(subject: Subject, rank: int, ends: dict[tuple[int, Chunk], float]) -> float:
    """Return when a rank's GEMM has taken all chunks, its own shard first."""
    arrived = {chunk: ends[rank, chunk] for chunk in chunks_in_order(subject, rank)}
    if not subject.overlapped:
        return max(arrived.values()) + subject.workload.compute_time_s()
    each_s = _chunk_s(subject)
    now_s = subject.sub_chunks * each_s
    for arrival_s in arrived.values():
        now_s = max(now_s, arrival_s) + each_s
    return now_s


def _reduced(subject: Subject, rank: int, ends: dict[tuple[int, Chunk], float]) -> float:
    """Return when a rank has ended its GEMM and has every other rank's part of its rows."""
    arrivals = [end for (_, (target, _)), end in ends.items() if target == rank]
    return max(*arrivals, subject.workload.compute_time_s())
