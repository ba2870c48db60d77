"""Times calls in windows: long enough for the clock, with the device idle before and after, and watched.

On the CPU a window is read off the clock that is injected: the wall's, but where torch has one thread alone
one that stands still while another process holds the core (`harness.instruments.timing.on_cpu_clock`). On
CUDA device
events take the time, once with whatever the L2 cache holds from the call before (`warm`) and once with the
cache overwritten before each call (`cold`); clocks and throttling are read while the device works on a window
(`harness.instruments.timing.clocks`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import torch

from harness.instruments.timing.clocks import Telemetry, telemetry_of
from harness.instruments.timing.on_cpu_clock import core_clock
from harness.records import Origin, Reading

WINDOW_S = 0.02
"""A window's length: the clock's own cost (some 0.1 µs) and what is done between windows vanish in it."""

COLD_CALLS = 8
"""Calls with a cold cache in one window, at most; overwriting the cache takes longer than a short kernel."""

Work = Callable[[], object]


def nothing() -> None:
    """Done beside a window where nothing is watched."""


class Timer(Protocol):
    """Seconds that a number of calls take, the device being idle at begin and end."""

    def seconds(self, work: Work, calls: int, beside: Callable[[], None] = nothing) -> float:
        """Do `work` so many times, and `beside` once while the device is at it, or after."""

    def seconds_cold(self, work: Work, calls: int) -> float | None:
        """The same with the cache overwritten before each call; None where that is not done."""


class ClockTimer:
    """For work that is over when its call returns, as on the CPU. `clock()` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock

    def seconds(self, work: Work, calls: int, beside: Callable[[], None] = nothing) -> float:
        """By the clock."""
        begin_s = self._clock()
        for _ in range(calls):
            work()
        taken_s = self._clock() - begin_s
        beside()
        return taken_s

    def seconds_cold(self, work: Work, calls: int) -> float | None:
        """Not done: a CPU's caches are shared with whatever else runs."""
        return None


class CudaTimer:
    """For work that is queued on `device`: its time between events, without the launch of the first call."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._overwritten = _twice_the_cache(device)

    def seconds(self, work: Work, calls: int, beside: Callable[[], None] = nothing) -> float:
        """Between an event before the first call and one after the last."""
        torch.cuda.synchronize(self._device)
        begin, end = self._events()
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        beside()
        torch.cuda.synchronize(self._device)
        return float(begin.elapsed_time(end)) / 1e3

    def seconds_cold(self, work: Work, calls: int) -> float | None:
        """The sum of each call's own, twice the cache's size being written in between."""
        pairs = [self._events() for _ in range(calls)]
        for begin, end in pairs:
            self._overwritten.zero_()
            begin.record()
            work()
            end.record()
        torch.cuda.synchronize(self._device)
        return float(sum(begin.elapsed_time(end) for begin, end in pairs)) / 1e3

    def _events(self) -> tuple[Any, Any]:
        make: Any = torch.cuda.Event
        return make(enable_timing=True), make(enable_timing=True)


@cache
def _twice_the_cache(device: torch.device) -> torch.Tensor:
    """Memory of twice the size of the L2 cache of `device`; one for all its timers."""
    cache_B = torch.cuda.get_device_properties(device).L2_cache_size
    return torch.empty(2 * cache_B, dtype=torch.int8, device=device)


class Stopwatch:
    """Times one piece of work, window by window. `calls` a window are settled by `calibrate`."""

    def __init__(
        self, work: Work, timer: Timer, telemetry: Telemetry | None = None, window_s: float = WINDOW_S
    ) -> None:
        self._work = work
        self._timer = timer
        self._telemetry = telemetry
        self._window_s = window_s
        self.calls = 0

    def calibrate(self) -> None:
        """Find how many calls fill a window: doubled until they do, then scaled by what they took."""
        calls, taken_s = 1, self._timer.seconds(self._work, 1)
        while taken_s < self._window_s / 2:
            calls *= 2
            taken_s = self._timer.seconds(self._work, calls)
        self.calls = max(1, round(calls * self._window_s / taken_s)) if taken_s > 0 else calls

    def window(self) -> Iterator[Reading]:
        """One window: seconds a call, and what was watched beside it. Calibrates before the first."""
        if not self.calls:
            self.calibrate()
        watched: list[Reading] = []
        telemetry = self._telemetry

        def beside() -> None:
            watched.extend(telemetry.readings() if telemetry is not None else ())

        with no_collection():
            taken_s = self._timer.seconds(self._work, self.calls, beside)
            cold = min(self.calls, COLD_CALLS)
            cold_s = self._timer.seconds_cold(self._work, cold)
        yield Reading("time", "s", taken_s / self.calls, Origin.MEASURED, "warm")
        if cold_s is not None:
            yield Reading("time", "s", cold_s / cold, Origin.MEASURED, "cold")
        yield from watched


def stopwatch(work: Work, device: torch.device) -> Stopwatch:
    """The stopwatch for work on `device`."""
    if device.type == "cuda":
        return Stopwatch(work, CudaTimer(device), telemetry_of(device))
    one_thread = torch.get_num_threads() == 1  # else its own threads may be what a thread waits for
    return Stopwatch(
        work, ClockTimer(core_clock() if one_thread else time.perf_counter), telemetry_of(device)
    )


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the cyclic garbage collector out of a window."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
