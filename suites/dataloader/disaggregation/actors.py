"""The actors: a planner, source loaders, and a data constructor per data-parallel group.

The classes are plain; `client` makes actors of them. They find one another by name, so that one that has
started anew knows the others.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from harness.records import Unavailable
from suites.dataloader.batch import LoaderError, LoaderSpec, PackedBatch, Tokens, context_slice, pack
from suites.dataloader.disaggregation.autoscaler import Autoscaler
from suites.dataloader.disaggregation.calls import ActorCalls
from suites.dataloader.disaggregation.mixture import Mixture
from suites.dataloader.disaggregation.plan import Lengths, Pieces, Wanted, plan_steps
from suites.dataloader.disaggregation.registry import ended, started
from suites.dataloader.disaggregation.settings import ActorSettings, digest_of
from suites.dataloader.disaggregation.source_reader import SourceReader
from suites.dataloader.readers import BadSample


class LoaderReport(NamedTuple):
    """What a source loader returns: lengths, bad samples met, and seconds and documents read per source."""

    lengths: Lengths
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
        self._reader = SourceReader(spec)
        self._lock = threading.Lock()

    def lengths(self, wanted: Wanted, low: Mapping[int, int]) -> LoaderReport:
        """Read ahead what is wanted and report on it; release what lies before `low`."""
        with self._lock:
            lengths = self._reader.lengths(wanted, low)
            return LoaderReport(lengths, self._reader.bad_samples(), dict(self._reader.read_s))

    def tokens(self, pieces: Pieces) -> Tokens:
        """Return the pieces' tokens, one after another."""
        with self._lock:
            return self._reader.tokens(pieces)

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


class GroupPlan(NamedTuple):
    """A group's pieces in each of some steps, and the source loader that has each source."""

    steps: Sequence[Pieces]
    route: Mapping[int, int]


class Planner(LoaderActor):
    """Plans steps ahead of time from lengths alone, and routes sources to source loaders."""

    def __init__(self, spec: LoaderSpec, settings: ActorSettings) -> None:
        self._spec, self._settings = spec, settings
        self._mixture = Mixture(spec)
        self._lock = threading.Lock()
        self._plans: dict[int, list[Pieces]] = {}
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
        """Return the group's pieces of `count` steps from step `first` on."""
        with self._lock:
            self._asked[group], self._ends[group] = first, first + count
            self._scaler.asked(group, first, time.monotonic())
            self._extend(first, first + count)
            self._more.set()
            steps = [self._plans[step][group] for step in range(first, first + count)]
            return GroupPlan(steps, self._scaler.route)

    def specification(self) -> str:
        """Return what identifies the order of the data."""
        return digest_of(self._spec, self._settings)

    def failed(self, loader: int) -> Mapping[int, int]:
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
                if begin + self._settings.plan_ahead // 2 not in self._plans:
                    # Whoever asks for a step that cannot be planned gets the reason.
                    with suppress(LoaderError, Unavailable):
                        self._extend(begin, begin + self._settings.plan_ahead)
                self._scale()

    def _scale(self) -> None:
        first = max(self._asked.values())
        counts_TS = self._mixture.counts(first, self._settings.plan_ahead)
        more, fewer = self._scaler.scale(counts_TS.mean(axis=0))
        for loader in more:
            start_loader(loader, self._spec, self._settings)
        for loader in fewer:
            ended(self._settings.job, f"loader-{loader}")

    def _extend(self, first: int, end: int) -> None:
        """Plan what is not planned of these steps; forget those that nobody asks for again."""
        oldest = min(self._asked.values()) - self._settings.plan_ahead
        for step in [one for one in self._plans if one < oldest]:
            del self._plans[step]
        missing = [step for step in range(first, end) if step not in self._plans]
        if missing:
            begin, count = missing[0], missing[-1] + 1 - missing[0]
            plans = plan_steps(self._spec, self._mixture, self._settings.balance, begin, count, self._lengths)
            self._plans.update(enumerate(plans, begin))

    def _lengths(self, wanted: Wanted) -> Lengths:
        low = self._mixture.taken(max(min(self._asked.values()) - self._settings.plan_ahead, 0))
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
            for report in answers.values():
                got |= report.lengths
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
        self._spec, self._group = spec, group
        self._calls = ActorCalls(settings)
        self._lock = threading.Lock()
        self._rows: dict[tuple[int, int], list[tuple[Any, Any, Pieces]]] = {}

    def batches(self, first: int, count: int, cp_rank: int) -> list[PackedBatch]:
        """Return a rank's batches of `count` steps from step `first` on."""
        with self._lock:
            key = (first, count)
            if key not in self._rows:
                while len(self._rows) >= 2 * self._spec.prefetch + 2:
                    del self._rows[min(self._rows)]
                self._rows[key] = self._built(first, count)
            rows = self._rows[key]
            if self._spec.cp_size == 1:
                del self._rows[key]
        return [self._slice(*one, cp_rank) for one in rows]

    def _slice(self, tokens: Any, segments: Any, pieces: Pieces, cp_rank: int) -> PackedBatch:
        size = self._spec.cp_size
        return PackedBatch(
            context_slice(tokens, size, cp_rank),
            context_slice(segments, size, cp_rank),
            int((pieces.firsts == 0).sum()),
            int(pieces.lengths.sum()),
            np.stack(pieces, axis=1),
        )

    def _built(self, first: int, count: int) -> list[tuple[Any, Any, Pieces]]:
        plan: GroupPlan = self._calls.planner("plan", self._group, first, count)
        every = Pieces(*(np.concatenate(parts) for parts in zip(*plan.steps, strict=True)))
        parts = self._tokens(every, plan.route)
        built, at = [], 0
        for pieces in plan.steps:
            mine = parts[at : at + len(pieces.lengths)]
            at += len(mine)
            built.append((*pack(mine, self._spec.context_length), pieces))
        return built

    def _tokens(self, pieces: Pieces, route: Mapping[int, int]) -> list[Tokens]:
        """Return the tokens of each piece, from the source loaders that have them."""
        parts: list[Tokens] = [np.empty(0, np.uint16)] * len(pieces.lengths)
        missing, limit = np.arange(len(parts)), self._calls.limit()
        while len(missing):
            loader_of = np.array([route[int(source)] for source in pieces.sources[missing]])
            asked = {int(loader): missing[loader_of == loader] for loader in np.unique(loader_of)}
            answers, dead = self._calls.call_all(
                {loader: ("tokens", (pieces.chosen(which),)) for loader, which in asked.items()}
            )
            for loader, joined in answers.items():
                ends = np.cumsum(pieces.lengths[asked[loader]])[:-1]
                for one, tokens in zip(asked[loader], np.split(joined, ends), strict=True):
                    parts[one] = tokens
            missing = np.concatenate([asked[loader] for loader in dead]) if dead else missing[:0]
            for loader in dead:
                limit(loader)
                route = self._calls.planner("failed", loader)
        return parts
