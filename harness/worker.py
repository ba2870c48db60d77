"""The child process: build, apply, check, sample, close; each reading goes to the parent as it is had.

`python -m harness.worker EVENTS LIFELINE`, with one group of cells as JSON on standard input. The only
module of the harness that loads suites, and through them torch.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import importlib
import json
import math
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from harness import environment, faults
from harness.executors import Began, Conditions, Ended, Event, Read, Remarked, event_to_json, now
from harness.records import UNITS, Cell, Host, Limits, Origin, Reading, Remark, Status, Unavailable

HARMLESS = (Status.OK, Status.UNAVAILABLE, Status.WRONG_RESULT)
"""After any other end the process is no longer to be trusted with the next cell."""


class Emitter:
    """Writes events to the parent, one line each."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._pid = os.getpid()

    def __call__(self, event: Event) -> None:
        """Write `event` whole. A copy of the process that a cell forked ends here: only the cell speaks."""
        if os.getpid() != self._pid:
            os._exit(70)
        line = event_to_json(event).encode() + b"\n"
        while line:
            line = line[os.write(self._fd, line) :]


def main() -> None:
    """Run the group on standard input; leave the rest to a fresh process once one cell broke this one."""
    emit, lifeline = Emitter(int(sys.argv[1])), int(sys.argv[2])
    die_with_parent(lifeline)
    over: list[bool] = []
    atexit.register(_end_group, over)  # registered first, so the last to run
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(all_threads=False)
    faulthandler.register(signal.SIGUSR1, all_threads=False, chain=True)  # says where a cell hangs, and dies
    output = os.dup(2)
    group = json.load(sys.stdin)
    limits = Limits(*group["limits"])
    for cell in (Cell(*fields) for fields in group["cells"]):
        _open_output(output, cell)
        if run_cell(cell, group["package"], limits, emit) not in HARMLESS:
            break
    over.append(True)


def _end_group(over: list[bool]) -> None:
    """Once all is said, kill what the cells started, and this process with it."""
    if over:
        os.killpg(0, signal.SIGKILL)


def _open_output(output: int, cell: Cell) -> None:
    """Give `cell` its output, whatever one before it did to its own, and mark where it begins."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.write(output, faults.begin_mark(cell.id))


def die_with_parent(lifeline: int) -> None:
    """Have the kernel kill this process's whole group once the parent's end of the pipe `lifeline` closes.

    It works while the process hangs in C, and for what it started. Linux only: fcntl(2), F_SETSIG.
    """
    os.set_inheritable(lifeline, False)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, getattr(fcntl, "F_SETSIG", 10), signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    if select.select([lifeline], [], [], 0)[0]:  # it closed before that was armed
        os.killpg(0, signal.SIGKILL)


def run_cell(cell: Cell, package: str, limits: Limits, emit: Emitter) -> Status:
    """Do the cell, and say how it ended."""
    emit(Began(cell.id, now()))
    start_s = time.monotonic()
    status, reason = Status.OK, ""
    try:
        _work(cell, package, limits, emit)
    except BaseException as error:
        status, reason = faults.of_exception(error, package)
        if status is Status.OUT_OF_MEMORY and limits.memory_B is not None:
            reason += f"; its limit is {limits.memory_B} B"
    emit(Ended(cell.id, status, reason, time.monotonic() - start_s))
    return status


def _work(cell: Cell, package: str, limits: Limits, emit: Emitter) -> None:
    suite: Any = importlib.import_module(f"{package}.{cell.suite}")
    module: Any = importlib.import_module(f"{package}.{cell.suite}.{cell.module}")
    reason = module.unavailable(host(sys.modules.get("torch")))
    if reason:
        raise Unavailable(reason)
    with memory_limit(limits.memory_B):
        subject = suite.build(cell.config["workload"], cell.seed)
        with _closing(suite, lambda: subject):
            subject = module.apply(subject, module.Settings(**cell.config["settings"]))
            suite.check(subject, module)
            emit(Conditions(cell.id, {str(k): str(v) for k, v in suite.conditions(subject).items()}))
            for said in suite.sample(subject):
                emit(_said(cell.id, said))


@contextmanager
def _closing(suite: Any, subject: Any) -> Iterator[None]:
    """Close the subject at the end. Where both fail, the first failure is the cell's reason."""
    try:
        yield
    except BaseException as error:
        try:
            suite.close(subject())
        except BaseException as second:
            error.add_note(f"close() failed too: {second}")
        raise
    suite.close(subject())


def _said(cell_id: str, said: Any) -> Event:
    """What a suite yielded, as an event; raises where it is no reading, naming what is wrong."""
    if isinstance(said, Remark):
        return Remarked(cell_id, faults.clean(said.text))
    if not isinstance(said, Reading):
        raise TypeError(f"sample() yielded {type(said).__name__} {said!r:.200}, neither Reading nor Remark")
    metric, unit, value, origin, method = said
    if not (isinstance(metric, str) and metric and isinstance(method, str)):
        raise TypeError(f"metric {metric!r}, method {method!r}: a metric has a name, a method is a str")
    if unit not in UNITS:
        raise ValueError(f"metric '{metric}': unit {unit!r} is none of {', '.join(sorted(UNITS))}")
    if origin not in list(Origin):
        raise ValueError(f"metric '{metric}': origin {origin!r} is none of {', '.join(Origin)}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"metric '{metric}': value {value!r:.200} is a {type(value).__name__}, not a number")
    if not math.isfinite(value):
        raise ValueError(f"metric '{metric}': value {value} is no figure; say why in a Remark")
    return Read(cell_id, Reading(metric, unit, float(value), str(origin), method))


@cache
def host(torch: ModuleType | None) -> Host:
    """This machine. `torch` is the library if the suite loaded it: a suite without it is given the CPU."""
    versions: Mapping[str, str] = environment.versions()
    cores = len(os.sched_getaffinity(0))
    if torch is None or not torch.cuda.is_available():
        return Host("cpu", environment.cpu_model(), 1, environment.memory_bytes(), cores, versions)
    device = torch.cuda.get_device_properties(0)
    return Host("cuda", device.name, torch.cuda.device_count(), device.total_memory, cores, versions)


@contextmanager
def memory_limit(memory_B: int | None) -> Iterator[None]:
    """Let allocations fail once private memory has grown by `memory_B` from here.

    What Python and the libraries already hold is not counted, nor is memory shared with other
    processes; the stack of each thread started later is, by its full size. Processes that a cell
    starts inherit the limit, each for itself. The kernel's own count and limit: VmData, RLIMIT_DATA.
    """
    if memory_B is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit_B = private_bytes() + memory_B
    resource.setrlimit(resource.RLIMIT_DATA, (limit_B if hard < 0 else min(limit_B, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def private_bytes() -> int:
    """Bytes of private writable memory that this process has mapped, as the kernel counts them."""
    with open("/proc/self/status") as status:
        found = re.search(r"^VmData:\s*(\d+) kB", status.read(), re.M)
    if found is None:
        raise Unavailable("a limit on memory needs the kernel's VmData, which /proc/self/status lacks here")
    return int(found[1]) * 1024


if __name__ == "__main__":
    main()
