"""The disaggregated loader while its actors are killed at random: what is lost, doubled or late."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from harness.records import Origin, Reading, WrongResult
from suites.dataloader.batch import LoaderSpec, RankPlace, pack
from suites.dataloader.disaggregation.calls import found
from suites.dataloader.disaggregation.plan import ActorSettings, Mixture, Pieces, wanted
from suites.dataloader.disaggregation.source_reader import SourceReader
from suites.dataloader.loaders.disaggregated import DisaggregatedLoader
from suites.dataloader.workload import Workload

UNDISTURBED_S = 10.0
"""How long batches are taken before the first actor is killed: throughput is compared with that."""

WINDOW_S = 1.0  # throughput is counted in windows of this length
RECOVERED = 0.9  # share of the undisturbed throughput at which it counts as recovered


class Killer:
    """Kills the process of a random actor every `interval_s` seconds, until `stop`."""

    def __init__(self, settings: ActorSettings, groups: int, interval_s: float, seed: int) -> None:
        self.killed_s: list[float] = []  # since it began
        self._names = ["planner", *(f"constructor-{one}" for one in range(groups))]
        self._names += [f"loader-{one}" for one in range(settings.loaders + settings.shadows)]
        self._job, self._interval_s, self._random = settings.job, interval_s, random.Random(seed)
        self._stopped = threading.Event()
        self._begin_s = time.perf_counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Kill no more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        import ray

        while not self._stopped.wait(self._interval_s):
            name = self._random.choice(self._names)
            try:
                os.kill(
                    ray.get(found(self._job, name).pid.remote(), timeout=self._interval_s), signal.SIGKILL
                )
            except (ray.exceptions.RayError, ProcessLookupError, ValueError):
                continue  # it is still starting anew after the last time
            self.killed_s.append(time.perf_counter() - self._begin_s)


def run(spec: LoaderSpec, address: str, pace: Workload) -> Iterator[Reading]:
    """Take batches of all groups while actors are killed; raises `WrongResult` for a changed document."""
    settings = ActorSettings("failures", loaders=2, most_loaders=2, shadows=1)
    loaders = [
        DisaggregatedLoader(spec, RankPlace(group, 0), settings, address) for group in range(spec.dp_size)
    ]
    steps = [taken(loaders) for _ in range(2)]
    first, begin_s = len(steps), time.perf_counter()
    while time.perf_counter() - begin_s < min(UNDISTURBED_S, pace.seconds):
        time.sleep(pace.step_s)
        steps.append(taken(loaders))
    usual_Hz = (len(steps) - first) / (time.perf_counter() - begin_s)
    killer = Killer(settings, spec.dp_size, pace.kill_interval_s, spec.seed)
    begin_s, arrived_s = time.perf_counter(), []
    try:
        while time.perf_counter() - begin_s < pace.seconds:
            time.sleep(pace.step_s)
            steps.append(taken(loaders))
            arrived_s.append(time.perf_counter() - begin_s)
    finally:
        killer.stop()
    least = int(pace.seconds / pace.kill_interval_s / 2)
    if len(killer.killed_s) < least:
        raise WrongResult(
            f"{len(killer.killed_s)} actors were killed, not at least {least}: nothing was tried"
        )
    compared = refuse_changed(spec, steps)
    yield Reading("steps", "1", len(steps), Origin.MEASURED)
    yield Reading("killed", "1", len(killer.killed_s), Origin.MEASURED)
    yield Reading("documents_compared", "1", compared, Origin.MEASURED)
    yield Reading("longest_wait", "s", float(np.diff(arrived_s, prepend=0.0).max()), Origin.MEASURED)
    yield Reading("step_rate", "Hz", usual_Hz, Origin.MEASURED, "undisturbed")
    yield Reading(
        "step_rate", "Hz", len(arrived_s) / arrived_s[-1], Origin.MEASURED, "while actors are killed"
    )
    for recovery_s in recoveries_s(np.array(arrived_s), killer.killed_s, pace.seconds, usual_Hz):
        yield Reading("recovery", "s", recovery_s, Origin.MEASURED)


def recoveries_s(arrived_s: Any, killed_s: list[float], until_s: float, usual_Hz: float) -> list[float]:
    """Return how long after each kill throughput was last low before the next kill; 0 if it never was.

    A window of one second is low with less than 90 % of the undisturbed steps, rounded down. Batches that are
    ready hide a kill at first, so the last low window counts.
    """
    least = int(RECOVERED * usual_Hz * WINDOW_S)
    recovered = []
    for at_s, next_s in pairwise([*killed_s, until_s]):
        begins_s = np.arange(at_s, min(next_s, until_s) - WINDOW_S, WINDOW_S / 10)
        low_s = [
            begin_s
            for begin_s in begins_s
            if ((arrived_s >= begin_s) & (arrived_s < begin_s + WINDOW_S)).sum() < least
        ]
        recovered.append(low_s[-1] + WINDOW_S / 10 - at_s if low_s else 0.0)
    return recovered


class TakenBatch(NamedTuple):
    """What is kept of a batch: its pieces, and a checksum of its rows."""

    pieces: NDArray[np.int64]
    checksum: int


def taken(loaders: list[DisaggregatedLoader]) -> list[TakenBatch]:
    """Return the next batch of each group. Pieces are copied: a view would keep the batch in Ray's store."""
    batches = [next(loader) for loader in loaders]
    return [TakenBatch(np.array(one.pieces), checksum(one.tokens, one.segments)) for one in batches]


def checksum(tokens: NDArray[np.uint16], segments: NDArray[np.uint16]) -> int:
    """Return a checksum of rows."""
    return crc32(segments.tobytes(), crc32(tokens.tobytes()))


def refuse_changed(spec: LoaderSpec, steps: list[list[TakenBatch]]) -> int:
    """Compare each batch with its files, and each step with the mixture; return the documents compared."""
    reader, mixture, compared = SourceReader(spec), Mixture(spec), 0
    for step, batches in enumerate(steps):
        documents = wanted(mixture, step, 1)
        lengths = reader.lengths(documents, {source: first for source, (first, _) in documents.items()})
        expected = sorted(
            (source, documents[source][0] + number, first, min(int(length) - first, spec.context_length))
            for source, of_source in lengths.items()
            for number, length in enumerate(of_source)
            for first in range(0, int(length), spec.context_length)
        )
        got = sorted(tuple(piece) for batch in batches for piece in batch.pieces.tolist())
        if got != expected:
            raise WrongResult(f"step {step} has {len(got)} pieces, not once each of its {len(expected)}")
        for group, batch in enumerate(batches):
            ones = [Pieces(*(np.array([value]) for value in piece)) for piece in batch.pieces.tolist()]
            rows = pack([reader.tokens(one) for one in ones], spec.context_length)
            if checksum(*rows) != batch.checksum:
                raise WrongResult(f"step {step}: the rows of group {group} differ from its documents")
        compared += sum(count for _, count in documents.values())
    return compared
