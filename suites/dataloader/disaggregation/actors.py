"""The actors: a planner, source loaders, and a data constructor per data-parallel group.

The classes are plain; `calls.started` makes actors of them. They find one another by name, so that one that
has started anew knows the others.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.records import Unavailable
from suites.dataloader.batch import (
    LoaderError,
    LoaderSpec,
    PackedBatch,
    context_slice,
    pack,
    with_ends,
)
from suites.dataloader.disaggregation.calls import ActorCalls, ended, started
from suites.dataloader.disaggregation.plan import (
    PLAN_AHEAD,
    ActorSettings,
    Autoscaler,
    Lengths,
    Mixture,
    Pieces,
    Wanted,
    digest_of,
    plan_steps,
)
from suites.dataloader.disaggregation.source_reader import SourceReader
from suites.dataloader.formats import BadSample

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of glibc's `mallopt(3)`

REUSED_B = 16 << 20
"""Arrays up to this size come from the heap, which keeps as much free memory at its end."""


def reuse_memory() -> None:
    """Let arrays of up to 16 MiB use freed memory of this process again, without glibc change nothing.

    Faulting in fresh pages for each array takes longer than copying what is written into them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, REUSED_B)
        mallopt(M_TRIM_THRESHOLD, REUSED_B)


class LoaderReport(NamedTuple):
    """What was read: lengths, in the order wanted, bad samples, and seconds and documents per source."""

    lengths: NDArray[np.int64]
    bad: Sequence[BadSample]
    read_s: Mapping[int, tuple[float, int]]


class LoaderActor:
    """What all actors have."""

    def pid(self) -> int:
        """Return the process that the actor is in."""
        return os.getpid()


class SourceLoader(LoaderActor):
    """Reads, decodes and tokenizes the documents of the sources that are routed to it."""

    def __init__(self, spec: LoaderSpec) -> None:
        reuse_memory()
        self._reader = SourceReader(spec)
        self._lock = threading.Lock()

    def lengths(self, wanted: Wanted, low: Mapping[int, int]) -> LoaderReport:
        """Read ahead what is wanted and report on it; release what lies before `low`."""
        with self._lock:
            lengths = np.concatenate(list(self._reader.lengths(wanted, low).values()))
            read_s = {source: self._reader.read_s[source] for source in wanted}
            return LoaderReport(lengths, self._reader.bad_samples(), read_s)

    def keep_only(self, sources: Sequence[int]) -> None:
        """Close the files of all other sources: another source loader reads them from now on."""
        with self._lock:
            self._reader.keep_only(frozenset(sources))

    def text(self, pieces: Pieces) -> NDArray[np.uint8]:
        """Return the pieces' text as `SourceReader.text` does, what was read ahead at once."""
        joined = self._reader.kept_text(pieces)
        if joined is None:
            with self._lock:
                joined = self._reader.text(pieces)
        return joined

    def reading(self) -> str:
        """Return the source that is read at this moment, or an empty text."""
        return self._reader.reading


def start_loader(number: int, spec: LoaderSpec, settings: ActorSettings) -> None:
    """Start a source loader. Who calls it hears at once if it dies, and may ask a shadow."""
    started(SourceLoader, settings.job, f"loader-{number}", spec, is_retried=False)


def start_loaders(spec: LoaderSpec, settings: ActorSettings) -> None:
    """Start those source loaders and shadows of a job that are not there, as the job has them at first."""
    most = max(settings.loaders, settings.most_loaders)
    for number in (*range(settings.loaders), *range(most, most + settings.shadows)):
        start_loader(number, spec, settings)


LoaderOfSource = Mapping[int, int]  # the source loader of each source


class GroupPlan(NamedTuple):
    """A group's pieces in each of some steps, and the source loaders that have read them, per step."""

    steps: Sequence[Pieces]
    routes: Sequence[LoaderOfSource]


class StepPlan(NamedTuple):
    """A step's pieces of each group, and the source loaders that read them as it was planned."""

    groups: Sequence[Pieces]
    route: LoaderOfSource


class Planner(LoaderActor):
    """Plans steps ahead of time from lengths alone, and routes sources to source loaders."""

    def __init__(self, spec: LoaderSpec, settings: ActorSettings) -> None:
        self._spec, self._settings = spec, settings
        self._mixture = Mixture(spec)
        self._lock = threading.Lock()
        self._plans: dict[int, StepPlan] = {}
        self._asked: dict[int, int] = {}  # the first step that each group has asked for last
        self._ends: dict[int, int] = {}  # the end of those steps
        self._bad: dict[tuple[str, int], BadSample] = {}
        self._calls = ActorCalls(settings)
        self._scaler = Autoscaler(
            len(spec.sources), settings.loaders, settings.most_loaders, settings.shadows
        )
        for loader in range(settings.loaders, settings.most_loaders):  # of a planner that died
            ended(settings.job, f"loader-{loader}")
        start_loaders(spec, settings)  # it may have ended some
        self._more = threading.Event()
        threading.Thread(target=self._plan_ahead, daemon=True).start()

    def plan(self, group: int, first: int, count: int) -> GroupPlan:
        """Return the group's pieces of `count` steps from step `first` on; planned ones at once."""
        ready = [self._plans.get(step) for step in range(first, first + count)]
        plans = [one for one in ready if one is not None]
        if len(plans) == count and group in self._asked:
            self._note_asked(group, first, count)
        else:
            with self._lock:
                self._note_asked(group, first, count)
                self._extend(first, first + count)
                plans = [self._plans[step] for step in range(first, first + count)]
        self._more.set()
        return GroupPlan([one.groups[group] for one in plans], [one.route for one in plans])

    def _note_asked(self, group: int, first: int, count: int) -> None:
        self._asked[group], self._ends[group] = first, first + count
        self._scaler.asked(group, first, time.monotonic())

    def specification(self) -> str:
        """Return what identifies the order of the data."""
        return digest_of(self._spec, self._settings)

    def failed(self, loader: int) -> LoaderOfSource:
        """Give the sources of a source loader that died to a shadow, if there is one; return the route."""
        with self._lock:
            self._failed(loader)
            return self._scaler.route

    def _failed(self, loader: int) -> None:
        """Pass a source loader's sources on; start it where it is gone for good and still expected."""
        if self._scaler.expects(loader):
            start_loader(loader, self._spec, self._settings)
        self._scaler.failed(loader)

    def status(self) -> dict[str, Any]:
        """Return what is observed: bad samples so far, source loaders in use, steps planned ahead."""
        with self._lock:
            return {
                "bad_samples": len(self._bad),
                "loaders": self._scaler.used,
                "planned_ahead": max(self._plans, default=0) - min(self._asked.values(), default=0),
                "scaled": self._scaler.changes,
            }

    def _plan_ahead(self) -> None:
        while True:
            self._more.wait()
            self._more.clear()
            with self._lock:
                begin = max(self._ends.values())
                if begin + PLAN_AHEAD // 2 not in self._plans:
                    # Whoever asks for a step that cannot be planned gets the reason.
                    with suppress(LoaderError, Unavailable):
                        self._extend(begin, begin + PLAN_AHEAD)
                self._scale()

    def _scale(self) -> None:
        first = max(self._asked.values())
        counts_TS = self._mixture.counts(first, PLAN_AHEAD)
        more, fewer = self._scaler.scale(counts_TS.mean(axis=0))
        for loader in more:
            start_loader(loader, self._spec, self._settings)
        if more:
            # Each closes what another one reads from now on.
            route = self._scaler.route
            for loader in set(route.values()):
                own = [source for source, reader in route.items() if reader == loader]
                with suppress(ValueError):  # it is not there yet
                    self._calls.handle(f"loader-{loader}").keep_only.remote(own)
        for loader in fewer:
            ended(self._settings.job, f"loader-{loader}")

    def _extend(self, first: int, end: int) -> None:
        """Plan what is not planned of these steps; forget those that nobody asks for again."""
        oldest = min(self._asked.values()) - PLAN_AHEAD
        for step in [one for one in self._plans if one < oldest]:
            del self._plans[step]
        missing = [step for step in range(first, end) if step not in self._plans]
        if missing:
            begin, count = missing[0], missing[-1] + 1 - missing[0]
            plans = plan_steps(self._spec, self._mixture, self._settings.balance, begin, count, self._lengths)
            route = self._scaler.route
            self._plans.update((step, StepPlan(plan, route)) for step, plan in enumerate(plans, begin))

    def _lengths(self, wanted: Wanted) -> Lengths:
        low = self._mixture.taken(max(min(self._asked.values()) - PLAN_AHEAD, 0))
        got: dict[int, Any] = {}
        limit = self._calls.limit()
        while missing := [source for source in wanted if source not in got]:
            route = self._scaler.route
            calls = {
                loader: {one: wanted[one] for one in missing if route[one] == loader}
                for loader in {route[one] for one in missing}
            }
            answers, dead = self._calls.call_all(
                {
                    loader: ("lengths", (part, {one: int(low[one]) for one in part}))
                    for loader, part in calls.items()
                }
            )
            for loader, report in answers.items():
                ends = np.cumsum([count for _, count in calls[loader].values()])[:-1]
                got.update(zip(calls[loader], np.split(report.lengths, ends), strict=True))
                self._note(report)
            for loader in dead:
                limit(loader)
                self._failed(loader)
        return got

    def _note(self, report: LoaderReport) -> None:
        self._scaler.read(report.read_s)
        for bad in report.bad:
            self._bad[bad.source, bad.sample] = bad
        if len(self._bad) > self._settings.most_bad_samples:
            worst = list(self._bad.values())[-1]
            raise LoaderError(
                f"source {worst.source}, document {worst.sample} in {worst.file}: {worst.reason}; "
                f"bad samples: {len(self._bad)}, allowed are {self._settings.most_bad_samples}"
            )


class Constructor(LoaderActor):
    """Packs a data-parallel group's documents into rows, and cuts them for its context-parallel ranks."""

    def __init__(self, spec: LoaderSpec, settings: ActorSettings, group: int) -> None:
        reuse_memory()
        self._spec, self._group = spec, group
        self._calls = ActorCalls(settings)
        self._lock = threading.Lock()
        self._rows: dict[tuple[int, int], Future[list[PackedBatch]]] = {}

    def batches(self, first: int, count: int, cp_rank: int) -> list[PackedBatch]:
        """Return a rank's batches of `count` steps from step `first` on."""
        alone = self._spec.cp_size == 1
        rows = self._built(first, count) if alone else self._shared(first, count)
        return [self._slice(one, cp_rank) for one in rows]

    def _shared(self, first: int, count: int) -> list[PackedBatch]:
        """Return what the first of the group's ranks that asks for it builds; it is kept for the others."""
        key = (first, count)
        with self._lock:
            is_first = key not in self._rows
            if is_first:
                while len(self._rows) >= 2 * self._spec.prefetch + 2:
                    del self._rows[min(self._rows)]
                self._rows[key] = Future()
            built = self._rows[key]
        if is_first:
            try:
                built.set_result(self._built(first, count))
            except BaseException as error:
                with self._lock:
                    self._rows.pop(key, None)  # who asks again lets it be built again
                built.set_exception(error)
        return built.result()

    def _slice(self, rows: PackedBatch, cp_rank: int) -> PackedBatch:
        tokens, segments = (context_slice(one, self._spec.cp_size, cp_rank) for one in rows[:2])
        return rows._replace(tokens=tokens, segments=segments)

    def _built(self, first: int, count: int) -> list[PackedBatch]:
        """Return the full rows of these steps."""
        plan: GroupPlan = self._calls.planner("plan", self._group, first, count)
        every = Pieces(*(np.concatenate(parts) for parts in zip(*plan.steps, strict=True)))
        loaders = [
            np.array([route[one] for one in step.sources.tolist()], np.int64)
            for step, route in zip(plan.steps, plan.routes, strict=True)
        ]
        parts = iter(self._text(every, np.concatenate(loaders)))
        batches = []
        for pieces in plan.steps:
            own = list(islice(parts, len(pieces.lengths)))
            tokens, segments = pack(own, self._spec.context_length)
            counts = int((pieces.firsts == 0).sum()), int(pieces.lengths.sum())
            batches.append(PackedBatch(with_ends(tokens), segments, *counts, np.stack(pieces, axis=1)))
        return batches

    def _text(self, pieces: Pieces, loader_of: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Return the text of each piece, from the source loaders that have them."""
        parts = [np.empty(0, np.uint8)] * len(pieces.lengths)
        missing, limit = np.arange(len(parts)), self._calls.limit()
        while len(missing):
            own = loader_of[missing]
            asked = {int(loader): missing[own == loader] for loader in np.unique(own)}
            answers, dead = self._calls.call_all(
                {loader: ("text", (pieces.chosen(which),)) for loader, which in asked.items()}
            )
            for loader, joined in answers.items():
                ends = np.cumsum(pieces.lengths[asked[loader]]).tolist()
                for one, begin, end in zip(asked[loader].tolist(), [0, *ends], ends, strict=False):
                    parts[one] = joined[begin:end]
            missing = np.concatenate([asked[loader] for loader in dead]) if dead else missing[:0]
            for loader in dead:
                limit(loader)
                route = self._calls.planner("failed", loader)
                for one in asked[loader].tolist():
                    loader_of[one] = route[int(pieces.sources[one])]
        return parts
