"""Name what is wrong with a step where its steps show it beyond their noise, and say where its time goes.

A cause is named where a difference is at least `LEAST_SHARE` of the step and its lower confidence bound over
the steps is above zero; waiting for data, which nothing is compared with, where that bound is above
`LEAST_SHARE`. The bound is Student's, one-sided, at `ERROR_RATE` divided by the number of candidates
(Bonferroni), so at most that share of traces without a cause gets one named. Steps that resemble their
predecessor count for less: n (1 - r) / (1 + r) of n steps, r being the correlation of neighbours.

The sentence is followed by what a trace itself shows about its launch gaps and its loader, and what would
remain without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from harness.instruments.traces import shortened
from harness.instruments.traces.breakdown import Breakdown, RankBreakdown
from harness.instruments.traces.communication import taken_apart
from harness.instruments.traces.segments import STATE_NAMES, State
from harness.instruments.traces.trace import EventKind, Ints, innermost

Floats = NDArray[np.float64]

LEAST_SHARE = 0.03  # a difference below this share of the step is not named
ERROR_RATE = 0.01  # share of traces without a cause in which one is named, at most
OWN = (State.COMPUTING, State.COPYING, State.PREPARING, State.CALLING, State.WAITING_FOR_DATA)
"""States in which one rank can be slower than the others by itself."""

COMPARED = (*OWN, State.COMMUNICATION, State.IDLE)  # states that are compared with those of a reference


class Cause(NamedTuple):
    """Something that takes time which it should not: a state, of one rank or of all (-1).

    `share` is the part of the step, `at_least` its lower confidence bound. `compared_with` says with what:
    "the other ranks", "the reference", or "" for time that no step should have.
    """

    state: State
    rank: int
    share: float
    at_least: float
    compared_with: str

    @property
    def name(self) -> str:
        """Return the cause in words."""
        if self.state == State.WAITING_FOR_RANK:
            return f"waiting for rank {self.rank}"
        of = f" of rank {self.rank}" if self.rank >= 0 else ""
        than = f" longer than with {self.compared_with}" if self.compared_with else ""
        return f"{STATE_NAMES[self.state]}{of}{than}"


def causes(of: Breakdown, reference: Breakdown | None = None) -> tuple[Cause, ...]:
    """Return the named causes, largest first; `reference` is the same step without the suspected cause."""
    candidates = list(_candidates(of, reference))
    found = []
    for one in candidates:
        share, bound = _lower_bound(one.excess, one.other, ERROR_RATE / len(candidates))
        least = 0.0 if one.compared_with else LEAST_SHARE
        if share >= LEAST_SHARE and bound > least:
            found.append(Cause(one.state, one.rank, share, bound, one.compared_with))
    return tuple(sorted(found, key=lambda cause: -cause.share))


class _Candidate(NamedTuple):
    """What could be a cause: its share of the mean step in each step, and what that must exceed. [step]"""

    state: State
    rank: int
    compared_with: str
    excess: Floats
    other: Floats | None = None


def _candidates(of: Breakdown, reference: Breakdown | None) -> Iterator[_Candidate]:
    yield _Candidate(State.WAITING_FOR_DATA, -1, "", _mean(of, State.WAITING_FOR_DATA) / of.step_s)
    if len(of.ranks) > 1:
        yield from _of_one_rank(of)
    if reference is not None:
        for state in COMPARED:
            now, then = _mean(of, state) / of.step_s, _mean(reference, state) / of.step_s
            yield _Candidate(state, -1, "the reference", now, then)


def _of_one_rank(of: Breakdown) -> Iterator[_Candidate]:
    """Yield what could make one rank slower than the others, and the others' waiting for it."""
    waits = [_waits_for(of, rank.rank) for rank in of.ranks]
    tables = {State.WAITING_FOR_RANK: waits}
    tables |= {state: [_by_step(rank, state) for rank in of.ranks] for state in OWN}
    for state, times_s in tables.items():
        table = np.array(times_s) / of.step_s
        if np.any(table):
            for i, rank in enumerate(of.ranks):
                others = np.delete(table, i, axis=0).mean(axis=0)
                yield _Candidate(state, rank.rank, "the other ranks", table[i] - others)


def _by_step(rank: RankBreakdown, state: State, detail: str = "") -> Floats:
    """Return the seconds of a state in each step, with one detail or with any. [step]"""
    shares = [share for share in rank.shares if share.state == state and detail in ("", share.detail)]
    times_ns = np.zeros(len(rank.step_ns)) + np.sum([one.by_step_ns for one in shares], axis=0)
    return np.asarray(times_ns / 1e9, np.float64)


def _waits_for(of: Breakdown, slower: int) -> Floats:
    """Return the seconds that the other ranks wait for one, per step, as their mean. [step]"""
    others = [rank for rank in of.ranks if rank.rank != slower]
    waits = [_by_step(rank, State.WAITING_FOR_RANK, f"rank {slower}") for rank in others]
    return np.asarray(np.mean(waits, axis=0), np.float64)


def _mean(of: Breakdown, state: State) -> Floats:
    """Return the seconds of a state in each step, as a mean over ranks. [step]"""
    return np.asarray(np.mean([_by_step(rank, state) for rank in of.ranks], axis=0), np.float64)


def _lower_bound(excess: Floats, other: Floats | None, error_rate: float) -> tuple[float, float]:
    difference = float(excess.mean() - (0.0 if other is None else other.mean()))
    samples = [one for one in (excess, other) if one is not None]
    counts = [_effective(one) for one in samples]
    if min(counts) < 2:
        return difference, -np.inf
    parts = [float(one.var(ddof=1)) / count for one, count in zip(samples, counts, strict=True)]
    error = float(np.sqrt(sum(parts)))
    if error == 0:
        return difference, difference
    welch = sum(p**2 / (n - 1) for p, n in zip(parts, counts, strict=True) if p)
    freedom = sum(parts) ** 2 / welch
    return difference, difference - float(stdtrit(freedom, 1 - error_rate)) * error


def _effective(samples: Floats) -> float:
    """Return how many independent samples these are worth, at most their number."""
    count = len(samples)
    if count < 3 or samples.std() == 0:
        return float(count)
    centred = samples - samples.mean()
    r = float(np.clip(np.sum(centred[1:] * centred[:-1]) / np.sum(centred**2), 0, 0.9))
    return count * (1 - r) / (1 + r)


def sentence(of: Breakdown, named: Sequence[Cause]) -> str:
    """Return where the time goes, largest first; a rank is named as waited for only where `named` has it."""
    shown = {words: share for words, share in _parts(of, named).items() if share >= LEAST_SHARE}
    rest = 1 - sum(shown.values())
    texts = [f"{100 * share:.0f} % {words}" for words, share in shown.items()]
    if rest >= 0.005:
        texts.append(f"{100 * rest:.0f} % other")
    slow = [cause for cause in named if cause.rank >= 0 and cause.state != State.WAITING_FOR_RANK]
    why = [f"{cause.name} by {100 * cause.share:.0f} % of the step" for cause in slow]
    return "; ".join(filter(None, [", ".join(texts), ", ".join(why)])) + "."


def _parts(of: Breakdown, named: Sequence[Cause]) -> dict[str, float]:
    """Return the shares of a step by their words, largest first; they sum to 1."""
    waited = {f"rank {cause.rank}" for cause in named if cause.state == State.WAITING_FOR_RANK}
    table: dict[str, float] = {}
    for share in of.shares:
        words = _words(of, share.state, share.detail, waited)
        table[words] = table.get(words, 0.0) + share.mean_s / of.step_s
    return dict(sorted(table.items(), key=lambda part: -part[1]))


def _words(of: Breakdown, state: State, detail: str, waited: set[str]) -> str:
    if state == State.COMMUNICATION:
        return f"exposed {_collective(of, detail)}"
    if state == State.WAITING_FOR_RANK:
        return f"waiting for {detail}" if detail in waited else "waiting of the ranks for one another"
    if state in GAPS:
        return "launch gaps"
    return "idle for an unknown reason" if state == State.IDLE else STATE_NAMES[state]


FSDP = (" of FSDP", r"^FSDP::|FullyShardedDataParallel")
CALLERS = {"all_gather": FSDP, "reduce_scatter": FSDP, "all_reduce": (" of DDP", "^DistributedDataParallel")}
"""Collective -> who calls it in words, and by which name a trace shows that."""


def _collective(of: Breakdown, detail: str) -> str:
    """Return a collective in words: what calls it, and whether it crosses nodes, where the trace shows it."""
    operation, _, _ = detail.partition(" of ")
    caller, by = CALLERS.get(operation, ("", ""))
    if not by or not of.ranks[0].activity.trace.named(by).any():
        caller = ""
    hosts = {one.activity.trace.host for one in of.ranks} - {""}
    between = " between nodes" if len(hosts) > 1 else ""
    return operation.replace("_", "-") + caller + between


PAUSE_ns = 100_000  # a longer launch gap is a pause of the host, which replaying launches does not shorten
GRAPHS = {"CUDA": "^cu(da)?(Launch|Graph|Memcpy|Memset)", "HIP": "^hip"}
"""Vendor of graphs -> how its calls begin."""

GAPS = (State.PREPARING, State.CALLING)


def advice(of: Breakdown) -> list[str]:
    """Return what follows from the trace, a line each; [] where nothing does."""
    return [line for line in (_of_launches(of), _of_loader(of)) if line]


def _gaps(rank: RankBreakdown) -> tuple[Ints, Ints]:
    """Return the length and the middle of each launch gap in the chosen steps. [gap]"""
    cut = rank.segments
    gap = np.isin(cut.state, GAPS) & np.isin(cut.step, rank.chosen)
    start_ns, end_ns = cut.start_ns[gap], cut.end_ns[gap]
    apart = start_ns[1:] != end_ns[:-1]
    first, last = (np.ones(len(start_ns), np.bool_) for _ in range(2))
    first[1:] = last[:-1] = apart
    return end_ns[last] - start_ns[first], (end_ns[last] + start_ns[first]) // 2


def _host_at(rank: RankBreakdown, at_ns: int) -> str:
    """Return the innermost operator, call or annotation of the training thread at an instant."""
    trace = rank.activity.trace
    hosts = trace.of_kind(EventKind.OP, EventKind.LAUNCH, EventKind.ANNOTATION)
    hosts &= (trace.track_of == rank.activity.training_track) & ~trace.named("^ProfilerStep#")
    events = np.flatnonzero(hosts)
    if not len(events):
        return ""
    found = innermost(trace.start_ns[events], trace.end_ns[events], np.array([at_ns]))[0]
    return trace.name(int(events[found])) if found >= 0 else ""


def _of_launches(of: Breakdown) -> str:
    """Return what launches and gaps show of the rank with most gaps, "" without a device or launches."""
    rank = max(of.ranks, key=lambda one: sum(one.share_of(state) for state in GAPS))
    trace, steps = rank.activity.trace, len(rank.chosen)
    events = np.flatnonzero(trace.of_kind(EventKind.KERNEL, EventKind.COPY) & (trace.launch_of >= 0))
    called_ns = trace.start_ns[trace.launch_of[events]]
    events = events[np.isin(rank.activity.step_at(called_ns), rank.chosen)]
    if sum(of.share_of(state) for state in GAPS) < LEAST_SHARE or not len(events):
        return ""
    calls = np.unique(trace.launch_of[events])
    kernel_s = float(np.median((trace.end_ns - trace.start_ns)[events])) / 1e9
    every = ""
    if len(calls) > steps:
        interval_s = float(np.median(np.diff(trace.start_ns[calls]))) / 1e9
        every = f", one every {_short(interval_s)} on the host"
    count = f"{_counted(len(calls) / steps)} {'launch' if len(calls) == steps else 'launches'} per step"
    gaps_ns, middle_ns = _gaps(rank)
    long_ns = gaps_ns[gaps_ns > PAUSE_ns]
    gap_s, pause_s = (float(one.sum()) / 1e9 / steps for one in (gaps_ns, long_ns))
    pauses = ""
    if pause_s:
        longest = _host_at(rank, int(middle_ns[gaps_ns.argmax()]))
        host = f"; in the longest the host is in {shortened(longest, 50)}" if longest else ""
        pauses = f" Pauses of more than {_short(PAUSE_ns / 1e9)}: {_counted(len(long_ns) / steps)} per step"
        pauses += f", {_ms(pause_s)} of {_ms(gap_s)}{host}."
    name = f" of rank {rank.rank}" if len(of.ranks) > 1 else ""
    work = f"each for {_short(kernel_s)} of work (medians)"
    remaining = _remaining(rank, events, gap_s - pause_s)
    return f"Launch gaps{name}: {count}{every}, {work}.{pauses}{remaining}"


def _remaining(rank: RankBreakdown, events: Ints, short_s: float) -> str:
    """Return what graphs would leave of the step, on devices that have them; `short_s`: gaps, no pauses."""
    trace = rank.activity.trace
    graphs, calls = trace.named(r"(?i)GraphLaunch"), np.unique(trace.launch_of[events])
    kernels = events[trace.kind[events] == EventKind.KERNEL]
    share = float(np.mean(graphs[trace.launch_of[kernels]])) if len(kernels) else 0.0
    if share >= 0.5:
        launched = _counted(float(np.sum(graphs[calls])) / len(rank.chosen))
        return f" Graphs launch {100 * share:.0f} % of the kernels ({launched} per step)."
    vendor = next((name for name, begins in GRAPHS.items() if trace.named(begins).any()), "")
    if not vendor or len(calls) < 2 * len(rank.chosen):
        return ""
    if short_s < LEAST_SHARE * rank.step_s:
        return f" Other gaps take less than 3 % of the step, so {vendor} graphs would gain little."
    return (
        f" If {vendor} graphs (torch.compile, mode=reduce-overhead) replayed all launches, at least "
        f"{_ms(rank.step_s - short_s)} of {_ms(rank.step_s)} would remain."
    )


def _of_loader(of: Breakdown) -> str:
    if of.share_of(State.WAITING_FOR_DATA) >= LEAST_SHARE:
        for pattern, line in LOADERS.items():
            if any(one.activity.trace.named(pattern).any() for one in of.ranks):
                return line
    return ""


LOADERS = {
    "_SingleProcessDataLoaderIter": "Data: the loader has no worker processes (num_workers=0): the device "
    "waits for each batch.",
    "_MultiProcessingDataLoaderIter": "Data: the loader has worker processes, and the training thread still "
    "waits for them.",
}
"""What a trace shows of a loader -> what follows."""


def communication_lines(of: Breakdown) -> Sequence[str]:
    """Return how long communication is under way, what hides it, and which kernels compute, too."""
    busy_s = of.overlapped_s + of.exposed_s
    if not busy_s:
        return []
    lines = [
        f"Communication: {_ms(busy_s)} per step, {_ms(of.overlapped_s)} hidden behind computing and "
        f"{_ms(of.exposed_s)} exposed."
    ]
    if of.fused_s:
        rank = max(of.ranks, key=lambda one: one.fused_s)
        events = np.flatnonzero(rank.activity.fused)
        whole = [rank.activity.trace.name(int(event)) for event in events]
        names = list(dict.fromkeys(taken_apart(name).function or name for name in whole))
        shown = ", ".join(shortened(name, 50) for name in names[:2]) + (", …" if len(names) > 2 else "")
        lines.append(
            f"Both: {_ms(of.fused_s)} per step are in kernels that compute and communicate ({shown}). They "
            "count as computing, and as communication hidden behind it."
        )
    return lines


def _ms(time_s: float) -> str:
    return f"{1e3 * time_s:.3f} ms"


def _short(time_s: float) -> str:
    if time_s < 1e-3:
        return f"{1e6 * time_s:.3g} µs"
    return f"{1e3 * time_s:.3g} ms" if time_s < 1 else f"{time_s:,.3g} s"


def _counted(count: float) -> str:
    return f"{count:,.0f}" if count >= 10 or count == round(count) else f"{count:.1f}"
