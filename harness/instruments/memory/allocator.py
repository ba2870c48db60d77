"""The memory of a real run: live bytes by the allocator's own events, and resident memory alongside.

On the CPU every allocation and release is an event of the profiler; CUDA's caching allocator keeps the peak.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

_MARK = "harness.mark:"


class SpanPeak(NamedTuple):
    """The most bytes between one mark and the next."""

    mark: str
    live_B: int  # of tensors: the allocator's live bytes
    reserved_B: int | None  # CUDA: what the caching allocator has reserved
    resident_B: int  # growth of the process; includes the profiler's own buffers, so never the answer


class AllocatorWatch:
    """Made by `watch`; `mark` begins a span, and `peaks` has one entry per span after the watch has ended."""

    def __init__(self, device: torch.device):
        self.device = device
        self.peaks: list[SpanPeak] = []
        self._open: str | None = None
        self._resident_before_B = psutil.Process().memory_info().rss

    def mark(self, name: str) -> None:
        """Begin a span `name`, until the next mark. Names may repeat; each is a separate span."""
        self.close_span()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with torch.profiler.record_function(f"{_MARK}{len(self.peaks)}"):
                pass
        with suppress(OSError):  # Linux alone has a peak of resident memory that can be reset, by proc(5)
            Path("/proc/self/clear_refs").write_text("5")
        self._open = name

    def close_span(self) -> None:
        """End the span that is open; its live bytes on the CPU are known once the watch has ended."""
        if self._open is None:
            return
        live_B, reserved_B = 0, None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            live_B = torch.cuda.max_memory_allocated(self.device)
            reserved_B = torch.cuda.max_memory_reserved(self.device)
        resident_B = _resident_peak_B() - self._resident_before_B
        self.peaks.append(SpanPeak(self._open, live_B, reserved_B, resident_B))
        self._open = None


@contextmanager
def watch(device: torch.device) -> Iterator[AllocatorWatch]:
    """Follow `device`'s allocator. Enter it before the first tensor is made.

    On the CPU only tensors made inside the block are counted; CUDA's peaks include all that the process has
    there. One watch at a time, and no other profiler inside: a process has one profiler.
    """
    watched = AllocatorWatch(device)
    if device.type == "cuda":
        yield watched
        watched.close_span()
        return
    gc.collect()  # what is released later must have been made inside the block
    with memory_profile() as profile:
        yield watched
        watched.close_span()
    live = zip(watched.peaks, _live_peaks(profile), strict=True)
    watched.peaks[:] = [one._replace(live_B=live_B) for one, live_B in live]


@contextmanager
def memory_profile() -> Iterator[Any]:
    """Return a profiler of every allocation of the CPU's allocator, with Kineto's own log silenced."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        yield profile


def memory_events(profile: Any, mark: str) -> list[tuple[str, int]]:
    """Return allocations ("[memory]", bytes; releases below zero) and ranges named `mark`…, by time."""
    events = sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    named = [(event.name(), event.nbytes()) for event in events]
    return [(name, size_B) for name, size_B in named if name == "[memory]" or name.startswith(mark)]


def _live_peaks(profile: Any) -> list[int]:
    live_B = 0
    peaks: list[int] = []
    for name, delta_B in memory_events(profile, _MARK):
        if name == "[memory]":
            live_B += delta_B
            if peaks:
                peaks[-1] = max(peaks[-1], live_B)
        else:
            peaks.append(live_B)
    return peaks


def _resident_peak_B() -> int:
    """Return on Linux the peak since the last reset, elsewhere what is resident now."""
    with suppress(OSError, TypeError):
        peak = re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.M)
        return int(peak[1]) * 1024  # type: ignore[index]
    return int(psutil.Process().memory_info().rss)


SAFE_SHARE = 0.8  # of the free memory: predictions are approximate, and other processes grow


def free_bytes(device: torch.device) -> int:
    """Return the bytes that torch can still allocate on `device`: free ones, and those its cache holds."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    cached_B = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + cached_B)


def shortage(need_B: float, device: torch.device) -> str | None:
    """Return in words why `need_B` do not fit safely; None where they do."""
    free_B = free_bytes(device)
    if need_B <= SAFE_SHARE * free_B:
        return None
    return f"takes about {need_B / 1e9:.1f} GB, and {free_B / 1e9:.1f} GB are free"
