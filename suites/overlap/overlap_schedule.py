"""The overlap_schedule suite: in what order 8 GPUs exchange shards so that communication hides behind a GEMM.

Schedules are simulated by links, from event to event in continuous time; messages that are under way at once
share a link max-min fair. Next to them a model of two stages, T = max(computation, communication) + first
chunk, is compared with published results. None of its inputs is fitted to a result.

Bytes, seconds; L links, S streams. An all-gather is pulled: the GEMM begins with the own shard and takes each
chunk when it has arrived. A reduce-scatter is pushed: the GEMM computes the chunks of other ranks first, and
each leaves when it is ready. Additions take no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, NamedTuple

import numpy as np

from harness.instruments.network.clos import FloatArray
from harness.instruments.network.flow_simulator import crossings, shares
from harness.records import Json, Origin, Reading, Unavailable, WrongResult
from suites.overlap.workload import OverlapScheduleWorkload
from suites.training.step_time.collectives import overlapped_s

ROUNDING = 1e-9  # relative tolerance of bytes and times: what ends within it ends at once


class Transfer(NamedTuple):
    """One message, which may begin at `ready_s`."""

    source: int
    target: int
    size_B: float
    ready_s: float = 0.0


Stream = Sequence[Transfer]  # messages that one engine carries one after the other


@dataclass(frozen=True, slots=True)
class Links:
    """The links between ranks, each with the same rate per direction."""

    topology: str
    ranks: int
    rate_B_per_s: float

    def path(self, transfer: Transfer) -> tuple[int, ...]:
        """Return the links that a message crosses."""
        if self.topology == "switch":
            return transfer.source, self.ranks + transfer.target
        return (transfer.source * self.ranks + transfer.target,)


class Carried(NamedTuple):
    """The end of each message (in the order of each stream), and the bytes that crossed each link."""

    end_s: list[list[float]]
    bytes_L: FloatArray


def carry(streams: Sequence[Stream], links: Links, message_s: float) -> Carried:
    """Return when each message has ended, whose bytes flow once it is ready and `message_s` is over."""
    # Ports out and in, or directed pairs.
    count, now_s = 2 * links.ranks if links.topology == "switch" else links.ranks**2, 0.0
    capacity_L = np.full(count, links.rate_B_per_s)
    carried = Carried([[] for _ in streams], np.zeros(len(capacity_L)))
    begin_s_S, left_B_S = np.full(len(streams), np.inf), np.zeros(len(streams))

    def prepare_next(stream: int) -> None:
        done = len(carried.end_s[stream])
        if done == len(streams[stream]):
            begin_s_S[stream] = np.inf
            return
        begin_s_S[stream] = max(now_s, streams[stream][done].ready_s) + message_s
        left_B_S[stream] = streams[stream][done].size_B

    for stream in range(len(streams)):
        prepare_next(stream)
    while np.isfinite(begin_s_S).any():
        is_flowing_S = begin_s_S <= now_s * (1 + ROUNDING)
        until_s = float(begin_s_S[~is_flowing_S].min(initial=np.inf))
        flowing_A: list[int] = np.flatnonzero(is_flowing_S).tolist()
        if not flowing_A:
            now_s = until_s
            continue
        # Bytes flow until the first message ends or another begins.
        current = [streams[one][len(carried.end_s[one])] for one in flowing_A]
        path_AJ = np.array([links.path(one) for one in current], dtype=np.int64)
        rate_A = shares(crossings(path_AJ), capacity_L)
        step_s = min(float((left_B_S[flowing_A] / rate_A).min()), until_s - now_s)
        np.add.at(carried.bytes_L, path_AJ, (rate_A * step_s)[:, None])
        left_B_S[flowing_A] -= rate_A * step_s
        now_s += step_s
        for stream, transfer in zip(flowing_A, current, strict=True):
            if left_B_S[stream] <= ROUNDING * transfer.size_B:
                carried.end_s[stream].append(now_s)
                prepare_next(stream)
    return carried


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload and the order in which its shards are exchanged; the baseline does not overlap."""

    workload: OverlapScheduleWorkload
    order: Literal["rotated", "same"] = "rotated"  # rank r begins with peer r + 1, or every rank with peer 0
    at_once: bool = True  # exchange with all peers at once, or with one after the other
    sub_chunks: int = 1  # messages of one shard
    overlapped: bool = False

    @property
    def rate_B_per_s(self) -> float:
        """Return the rate of a port or link, without which `build` refuses a schedule."""
        assert self.workload.rate_B_per_s is not None
        return self.workload.rate_B_per_s


def refuse_indivisible(subject: Subject) -> None:
    """Raise `Unavailable` where the GEMM's sizes do not divide by ranks or by messages of a shard."""
    given = subject.workload
    if given.kind == "published":
        return
    name, size = ("n", given.n) if given.operation == "allgather_gemm" else ("k", given.k)
    if size % given.ranks:
        raise Unavailable(f"{name}={size}: expected a multiple of the ranks ({given.ranks})")
    rows = given.m // given.ranks
    if rows % subject.sub_chunks:
        raise Unavailable(f"sub_chunks={subject.sub_chunks}: {rows} rows of a shard do not divide by it")


class OverlapModel(NamedTuple):
    """Computation and communication of one operation, and into how many chunks the overlap divides them."""

    compute_s: float
    communication_s: float
    chunks: int

    @property
    def sequential_s(self) -> float:
        """Return the time of one after the other."""
        return self.compute_s + self.communication_s

    @property
    def longer_s(self) -> float:
        """Return the time that no overlap can go below."""
        return max(self.compute_s, self.communication_s)

    @property
    def overlapped_s(self) -> float:
        """Return the longer of both, plus the first chunk of the shorter: a pipeline of two stages."""
        return float(overlapped_s(self.compute_s, self.communication_s, 1 / self.chunks))

    @property
    def speedup(self) -> float:
        """Return how much faster overlapped is than sequential."""
        return self.sequential_s / self.overlapped_s


def model_of(workload: OverlapScheduleWorkload, share: float | None = None) -> OverlapModel:
    """Return a workload's model at a share of the peak, by default its own; raises `Unavailable`."""
    parts = workload.ranks if workload.kind == "schedule" else workload.chunks
    return OverlapModel(workload.compute_time_s(share), workload.communication_time_s, parts)


def closed_form_s(subject: Subject) -> float | None:
    """Return what the schedule takes by a formula of its own; None where there is none.

    N chunks of the other ranks arrive (or leave) in groups, each `group_s` after the one before, and the GEMM
    takes `each_s` per chunk. The latest is the first or the last group, since times between are linear.
    """
    given = subject.workload
    compute_s, others = given.compute_time_s(), given.ranks - 1
    group_s = _group_s(subject)
    if group_s is None:
        return None
    if not subject.overlapped:
        groups = subject.sub_chunks * (1 if subject.at_once else others)
        return compute_s + groups * group_s
    each_s = compute_s / (given.ranks * subject.sub_chunks)
    size = others if subject.at_once else 1  # chunks of a group
    chunks = others * subject.sub_chunks
    first_s = group_s + chunks * each_s
    last_s = chunks // size * group_s + size * each_s
    return max(compute_s, first_s, last_s)


def _group_s(subject: Subject) -> float | None:
    """Return the seconds of one step of messages; None where messages of different steps share links."""
    given = subject.workload
    switch, pushed = given.topology == "switch", given.operation == "gemm_reduce_scatter"
    sharing = 1
    if switch and subject.at_once:
        if pushed and subject.overlapped:
            return None  # chunks leave one by one, and those that are late share the port with others
        sharing = given.ranks - 1
    elif switch and subject.order == "same":
        return None
    return given.message_s + sharing * given.shard_B / subject.sub_chunks / subject.rate_B_per_s


Chunk = tuple[int, int]  # a part of a shard: the peer, and the number of the part


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


TOLERANCE = 1e-8  # relative rounding of a simulated time and of bytes
SHARES = (0.5, 0.6, 0.7, 0.8)  # shares of the peak at which the model is calculated as well


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline: the collective at the topology's best rate, and the GEMM before or after it.

    Raises `Unavailable` where sizes do not divide, or a time is neither published nor can be calculated.
    """
    subject = Subject(OverlapScheduleWorkload(**workload))
    refuse_indivisible(subject)
    model_of(subject.workload)
    return subject


def check(subject: Subject) -> None:
    """Compare a schedule with its bound, its closed form and its links' bytes; raises `WrongResult`."""
    if subject.workload.kind == "published":
        return
    result, model = simulate(subject), model_of(subject.workload)
    if result.time_s < model.longer_s * (1 - TOLERANCE):
        raise WrongResult(f"{result.time_s:.6g} s: no schedule takes less than {model.longer_s:.6g} s")
    expected_s = closed_form_s(subject)
    if expected_s is not None and abs(result.time_s / expected_s - 1) > TOLERANCE:
        raise WrongResult(f"simulated {result.time_s:.9g} s, by its closed form {expected_s:.9g} s")
    _refuse_lost_bytes(subject, result)


def _refuse_lost_bytes(subject: Subject, result: ScheduleResult) -> None:
    """Raise `WrongResult` where a link carried another number of bytes than all shards that cross it."""
    given = subject.workload
    links = Links(given.topology, given.ranks, subject.rate_B_per_s)
    expected_L = np.zeros_like(result.carried.bytes_L)
    for source, target in permutations(range(given.ranks), 2):
        expected_L[list(links.path(Transfer(source, target, given.shard_B)))] += given.shard_B
    if not np.allclose(result.carried.bytes_L, expected_L, rtol=TOLERANCE, atol=0):
        link = int(np.argmax(np.abs(result.carried.bytes_L - expected_L)))
        carried_B = result.carried.bytes_L[link]
        raise WrongResult(f"link {link} carried {carried_B:.9g} B; its shards have {expected_L[link]:.9g} B")


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may name, and what the times assume."""
    given = subject.workload
    scheduled = given.kind == "schedule"
    return {
        "device": "cuda",
        "device_name": given.device_name,
        "operation": given.operation if scheduled else "",
        "topology": given.topology if scheduled else "",
        "ranks": str(given.ranks) if scheduled else "",
        "computation": "published"
        if given.compute_s is not None
        else f"{given.compute_share:.0%} of peak, assumed",
        "communication": "published" if given.communication_s is not None else "bytes / rate of the links",
        "published_by": given.published_by,
        "provenance": given.provenance,
        "source": given.source,
    }


def sample(subject: Subject) -> Iterator[Reading]:
    """Simulate the schedule; with the baseline, calculate the model and compare it with what is published."""
    if subject.workload.kind == "schedule":
        yield from simulated(subject)
    if not subject.overlapped:
        yield from modelled(subject.workload)
        yield from published(subject.workload)


def simulated(subject: Subject) -> Iterator[Reading]:
    """Yield what the schedule takes, and how it uses the links."""
    result, model = simulate(subject), model_of(subject.workload)
    exposed_s = result.time_s - model.compute_s
    for metric, unit, value in (
        ("time", "s", result.time_s),
        ("exposed_communication", "s", exposed_s if exposed_s > TOLERANCE * result.time_s else 0.0),
        ("communication", "s", result.communication_s),
        ("model_reached", "1", model.overlapped_s / result.time_s),
        ("rate_reached", "1", model.communication_s / result.communication_s),
        ("busiest_link", "B", float(result.carried.bytes_L.max())),
    ):
        yield Reading(metric, unit, value, Origin.SIMULATED)
    yield Reading("computation", "s", model.compute_s, Origin.CALCULATED)
    ratio = model.communication_s / model.compute_s
    yield Reading("communication_over_computation", "1", ratio, Origin.CALCULATED)


def modelled(given: OverlapScheduleWorkload) -> Iterator[Reading]:
    """Yield the model's times and speed-up, and the speed-up at other shares of the peak."""
    model = model_of(given)
    for metric, unit, value in (
        ("sequential", "s", model.sequential_s),
        ("overlapped", "s", model.overlapped_s),
        ("speedup", "1", model.speedup),
    ):
        yield Reading(metric, unit, value, Origin.CALCULATED, "model")
    yield Reading("overlapped", "s", model.longer_s, Origin.CALCULATED, "no first chunk")
    if given.compute_s is None:
        yield Reading("compute_share", "1", given.compute_share, Origin.CALCULATED)
        for share in SHARES:
            speedup = model_of(given, share).speedup
            yield Reading("speedup", "1", speedup, Origin.CALCULATED, f"at {share:.0%} of peak")


def published(given: OverlapScheduleWorkload) -> Iterator[Reading]:
    """Yield published values, and the model's relative error of each; of speed-ups at other shares too."""
    model = model_of(given)
    for metric, unit, theirs, ours in (
        ("sequential", "s", given.published_sequential_s, model.sequential_s),
        ("overlapped", "s", given.published_overlapped_s, model.overlapped_s),
        ("speedup", "1", given.speedup_of_source, model.speedup),
    ):
        if theirs is not None:
            yield Reading(metric, unit, theirs, Origin.PUBLISHED, "published")
            yield Reading("relative_error", "1", ours / theirs - 1, Origin.CALCULATED, metric)
    if given.flux_speedup is not None:
        yield Reading("speedup", "1", given.flux_speedup, Origin.PUBLISHED, "FLUX")
    if given.speedup_of_source is not None and given.compute_s is None:
        for share in SHARES:
            error = model_of(given, share).speedup / given.speedup_of_source - 1
            yield Reading("relative_error", "1", error, Origin.CALCULATED, f"speedup at {share:.0%} of peak")
