"""Clocks, power, temperature and throttle reasons of a device, sampled by a thread while it works.

NVIDIA's by NVML (nvidia-ml-py), AMD's by amdsmi, a CPU's from the kernel's cpufreq and thermal zones where it
exposes them; in most virtual machines it does not. Nothing is set, only read.

A GPU is found by its UUID, since NVML ignores CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from harness.records import Origin, Reading

CPU_CLOCKS = Path("/sys/devices/system/cpu")

HARMLESS_REASONS = ("GpuIdle", "ApplicationsClocksSetting", "None")  # idle, or set by a person


PERIOD_S = 0.02  # 50 samples per second, as often as NVML renews its values or more often
THERMAL_ZONES = Path("/sys/class/thermal")

MICRO, MILLI = 1e-6, 1e-3


class DeviceState(NamedTuple):
    """One sample; None where the device does not report it. `throttled`: slowed for heat or power."""

    clock_Hz: float | None = None
    peak_clock_Hz: float | None = None
    memory_clock_Hz: float | None = None
    power_W: float | None = None
    temperature_C: float | None = None
    throttled: float | None = None


METRICS = {
    "clock_Hz": ("device_clock", "Hz"),
    "peak_clock_Hz": ("peak_clock", "Hz"),
    "memory_clock_Hz": ("memory_clock", "Hz"),
    "power_W": ("power", "W"),
    "temperature_C": ("temperature", "°C"),
    "throttled": ("throttled_share", "1"),
}
"""Field -> metric and unit of its mean over the samples."""

ReadState = Callable[[], DeviceState]


class DeviceSampler:
    """A context that reads a device again and again until its end; `samples` has what was read."""

    def __init__(self, read: ReadState) -> None:
        self.samples: list[DeviceState] = []
        self._read = read
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> DeviceSampler:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.samples.append(self._read())
            if self._ended.wait(PERIOD_S):
                return


def telemetry_means(samples: Sequence[DeviceState]) -> dict[str, float]:
    """Return the mean of each field that was read, by its name."""
    columns = zip(DeviceState._fields, zip(*samples, strict=True), strict=False)
    known = {name: [one for one in column if one is not None] for name, column in columns}
    return {name: fmean(column) for name, column in known.items() if column}


def telemetry_readings(means: dict[str, float], method: str) -> Iterator[Reading]:
    """Read the means of a device's samples."""
    for name, value in means.items():
        metric, unit = METRICS[name]
        yield Reading(metric, unit, value, Origin.MEASURED, method)


WATCHED = {
    "cpufreq": (("clock_Hz", "cpu_clock", "Hz"),),
    "nvml": (("clock_Hz", "sm_clock", "Hz"), ("throttled", "throttled", "1")),
}
"""Method -> the fields that are read during a window, each with its metric and unit."""


class Telemetry(NamedTuple):
    """What is read during each window of a stopwatch."""

    read: ReadState
    method: str

    def readings(self) -> Iterator[Reading]:
        """Return one reading of each metric that the device reports."""
        state = self.read()
        for field, metric, unit in WATCHED[self.method]:
            value = getattr(state, field)
            if value is not None:
                yield Reading(metric, unit, value, Origin.MEASURED, self.method)


def telemetry_of(device: torch.device) -> Telemetry | None:
    """Return the telemetry of `device`; None where there is none."""
    on_gpu = device.type == "cuda"
    read = _nvidia_reader(device) if on_gpu else _cpu_reader()
    return None if read is None else Telemetry(read, "nvml" if on_gpu else "cpufreq")


def state_reader(device: torch.device) -> ReadState | None:
    """Return what reads the state of the device; None where nothing does."""
    if device.type != "cuda":
        return _cpu_reader()
    return _amd_reader(device) if torch.version.hip else _nvidia_reader(device)


def _cpu_reader() -> ReadState | None:
    """Return what reads a CPU's clock and temperature from the kernel's files; None where it has neither."""
    kHz = sorted(CPU_CLOCKS.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    milli_C = sorted(THERMAL_ZONES.glob("thermal_zone*/temp"))
    if not kHz and not milli_C:
        return None
    return lambda: DeviceState(clock_Hz=_mean(kHz, 1 / MILLI), temperature_C=_mean(milli_C, MILLI))


def _nvidia_reader(device: torch.device) -> ReadState | None:
    """Return what reads an NVIDIA GPU by NVML; None without the library, or for a slice of a GPU."""
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        return nvml_reader(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except pynvml.NVMLError:
        return None


def nvml_reader(library: Any, handle: Any) -> ReadState:
    """Return what reads a GPU by NVML (`library` is pynvml)."""
    harmless = [getattr(library, f"nvmlClocksThrottleReason{name}", 0) for name in HARMLESS_REASONS]

    def reported(factor: float, call: Callable[..., int], kind: int | None = None) -> float | None:
        try:
            return factor * (call(handle) if kind is None else call(handle, kind))
        except library.NVMLError:  # this GPU does not report it
            return None

    def read() -> DeviceState:
        reasons = library.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return DeviceState(
            clock_Hz=library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM) / MICRO,
            peak_clock_Hz=reported(1 / MICRO, library.nvmlDeviceGetMaxClockInfo, library.NVML_CLOCK_SM),
            memory_clock_Hz=reported(1 / MICRO, library.nvmlDeviceGetClockInfo, library.NVML_CLOCK_MEM),
            power_W=reported(MILLI, library.nvmlDeviceGetPowerUsage),
            temperature_C=reported(1.0, library.nvmlDeviceGetTemperature, library.NVML_TEMPERATURE_GPU),
            throttled=float(bool(reasons & ~reduce(or_, harmless))),
        )

    return read


def _amd_reader(device: torch.device) -> ReadState | None:
    """Return what reads an AMD GPU by amdsmi; None without the library, or where it does not know the GPU."""
    try:
        import amdsmi
    except (ImportError, OSError, KeyError):
        return None
    try:
        amdsmi.amdsmi_init()
        handles = amdsmi.amdsmi_get_processor_handles()
        return amdsmi_reader(amdsmi, handles[device.index or 0])
    except (amdsmi.AmdSmiException, IndexError):
        return None


def amdsmi_reader(library: Any, handle: Any) -> ReadState:
    """Return what reads a GPU by amdsmi (`library`), in its units: MHz, W and °C."""
    kinds = library.AmdSmiClkType
    heat = (library.AmdSmiTemperatureType.HOTSPOT, library.AmdSmiTemperatureMetric.CURRENT)

    def read() -> DeviceState:
        clock = library.amdsmi_get_clock_info(handle, kinds.GFX)
        power = library.amdsmi_get_power_info(handle)["current_socket_power"]
        return DeviceState(
            clock_Hz=clock["clk"] / MICRO,
            peak_clock_Hz=clock["max_clk"] / MICRO,
            memory_clock_Hz=library.amdsmi_get_clock_info(handle, kinds.MEM)["clk"] / MICRO,
            power_W=float(power) if isinstance(power, int | float) else None,
            temperature_C=float(library.amdsmi_get_temp_metric(handle, *heat)),
        )

    return read


def _mean(files: Sequence[Path], factor: float) -> float | None:
    return fmean(factor * int(file.read_text()) for file in files) if files else None
