"""Clocks and throttling of the timed device, read during each window.

A GPU by NVML, found by its UUID, since NVML ignores CUDA_VISIBLE_DEVICES. A CPU where the kernel exposes its
clock (cpufreq); in most virtual machines it does not, and nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from harness.records import Origin, Reading

CPU_CLOCKS = Path("/sys/devices/system/cpu")

HARMLESS_REASONS = ("GpuIdle", "ApplicationsClocksSetting", "None")
"""Reasons for a clock below its maximum that are not throttling: idle, or set so by a person."""


class Telemetry(Protocol):
    """What is read during a window."""

    def readings(self) -> Iterator[Reading]:
        """Return one reading of each metric."""


class CpuClocks:
    """The mean clock of the CPUs, from cpufreq (in kHz there)."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files

    def readings(self) -> Iterator[Reading]:
        """Return `cpu_clock`, Hz."""
        kHz = [int(file.read_text()) for file in self._files]
        yield Reading("cpu_clock", "Hz", 1e3 * sum(kHz) / len(kHz), Origin.MEASURED, "cpufreq")


class GpuClocks:
    """The SM clock of one GPU and whether it is throttled, by NVML (`library` is pynvml)."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle
        harmless = [getattr(library, f"nvmlClocksThrottleReason{name}", 0) for name in HARMLESS_REASONS]
        self._harmless = sum(set(harmless))

    def readings(self) -> Iterator[Reading]:
        """Return `sm_clock`, Hz, and `throttled`, 1 where the clock is reduced for heat or power."""
        MHz = self._library.nvmlDeviceGetClockInfo(self._handle, self._library.NVML_CLOCK_SM)
        reasons = self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        yield Reading("sm_clock", "Hz", 1e6 * MHz, Origin.MEASURED, "nvml")
        yield Reading("throttled", "1", float(bool(reasons & ~self._harmless)), Origin.MEASURED, "nvml")


def telemetry_of(device: torch.device) -> Telemetry | None:
    """Return the telemetry of `device`; None where there is none."""
    if device.type == "cuda":
        import pynvml

        try:
            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            return GpuClocks(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError:  # no library, or a slice of a GPU, which has no readable clock
            return None
    files = sorted(CPU_CLOCKS.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    return CpuClocks(files) if files else None
