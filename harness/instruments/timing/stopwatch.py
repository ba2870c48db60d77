"""Time calls in windows: long enough for the clock, with the device idle before and after.

On the CPU a window is read from the injected clock: the wall clock or, where torch has one thread, one that
stops while another process has the core (`harness.instruments.timing.core_account`). On CUDA device events
take the time, once with the L2 cache as the previous call left it (`warm`) and once with the cache
overwritten before each call (`cold`); clocks and throttling are read while the device works on a window
(`harness.instruments.timing.device_telemetry`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from harness.instruments.process import no_collection
from harness.instruments.timing.core_account import core_clock
from harness.instruments.timing.device_telemetry import Telemetry, telemetry_of
from harness.records import Origin, Reading

WINDOW_S = 0.02  # the cost of the clock (about 0.1 µs) and of work between windows is negligible in it
COLD_CALLS = 8  # at most in one window: overwriting the cache takes longer than a short kernel
Work = Callable[[], object]


class ClockTimer:
    """A timer for work that is complete when its call returns, as on the CPU. `clock()` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock

    def seconds(self, work: Work, calls: int, beside: Work = lambda: None) -> float:
        """Return the seconds of that many calls of `work`; call `beside` once meanwhile, or after."""
        begin_s = self._clock()
        for _ in range(calls):
            work()
        taken_s = self._clock() - begin_s
        beside()
        return taken_s

    def seconds_cold(self, work: Work, calls: int) -> float | None:
        """Return None: a CPU's caches are shared with other processes."""
        return None


class CudaTimer:
    """A timer for work queued on `device`: its time between events, without the launch of the first call."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._overwritten = _twice_the_cache(device)

    def seconds(self, work: Work, calls: int, beside: Work = lambda: None) -> float:
        """Return the seconds between an event before the first call and one after the last."""
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
        """Return the sum of each call's seconds, with twice the cache's size written in between."""
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
    """Return memory of twice the L2 cache's size of `device`; shared by all its timers."""
    cache_B = torch.cuda.get_device_properties(device).L2_cache_size
    return torch.empty(2 * cache_B, dtype=torch.int8, device=device)


class Stopwatch:
    """Times one piece of work, window by window; `calibrate` sets the `calls` per window."""

    def __init__(
        self,
        work: Work,
        timer: ClockTimer | CudaTimer,
        telemetry: Telemetry | None = None,
        window_s: float = WINDOW_S,
    ) -> None:
        self._work, self._timer, self._telemetry, self._window_s = work, timer, telemetry, window_s
        self.calls = 0

    def calibrate(self) -> None:
        """Find how many calls fill a window: doubled until they do, then scaled by the time they took."""
        calls, taken_s = 1, self._timer.seconds(self._work, 1)
        while taken_s < self._window_s / 2:
            calls *= 2
            taken_s = self._timer.seconds(self._work, calls)
        self.calls = max(1, round(calls * self._window_s / taken_s)) if taken_s > 0 else calls

    def window(self) -> Iterator[Reading]:
        """Time one window: seconds per call, and the telemetry; calibrates before the first."""
        if not self.calls:
            self.calibrate()
        watched: list[Reading] = []
        telemetry = self._telemetry
        with no_collection():
            taken_s = self._timer.seconds(
                self._work, self.calls, lambda: watched.extend(telemetry.readings() if telemetry else ())
            )
            cold = min(self.calls, COLD_CALLS)
            cold_s = self._timer.seconds_cold(self._work, cold)
        yield Reading("time", "s", taken_s / self.calls, Origin.MEASURED, "warm")
        if cold_s is not None:
            yield Reading("time", "s", cold_s / cold, Origin.MEASURED, "cold")
        yield from watched


def stopwatch(work: Work, device: torch.device) -> Stopwatch:
    """Return the stopwatch for work on `device`."""
    if device.type == "cuda":
        return Stopwatch(work, CudaTimer(device), telemetry_of(device))
    one_thread = torch.get_num_threads() == 1  # else a thread may wait for its own process's threads
    timer = ClockTimer(core_clock() if one_thread else time.perf_counter)
    return Stopwatch(work, timer, telemetry_of(device))
