"""The child process: build, apply, check, sample, close; each reading is sent to the parent at once.

`python -m harness.sweep.worker EVENTS LIFELINE`, with one group of cells as JSON on standard input.
The only module of the harness that loads suites, and through them torch.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from types import ModuleType
from typing import Any

import psutil

from harness.config.optimizations import AGAIN, BASELINE, code_below
from harness.config.protocols import (
    OptimizationModule,
    apply,
    check_optimization,
    check_suite,
    close,
    optimization_module,
    prepared,
    unavailable,
)
from harness.config.techniques import check_functions
from harness.instruments.memory.process_memory import private_bytes, private_limit
from harness.instruments.process import call_unary_functions, die_with_parent, memory_bytes
from harness.records import (
    UNITS,
    Cell,
    HostInfo,
    Limits,
    Note,
    Origin,
    Reading,
    Sampling,
    Status,
    Unavailable,
)
from harness.sweep import environment, failure_classification
from harness.sweep.executors import (
    CellEvent,
    CellFinished,
    CellNote,
    CellReading,
    CellStarted,
    Conditions,
    event_to_json,
    now,
)
from harness.sweep.failure_classification import HARMLESS


class Emitter:
    """Writes events to the parent, one line each."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._pid = os.getpid()

    def __call__(self, event: CellEvent) -> None:
        """Write `event` atomically; a copy of the process that a cell forked ends here."""
        if os.getpid() != self._pid:
            os._exit(70)
        line = event_to_json(event).encode() + b"\n"
        while line:
            line = line[os.write(self._fd, line) :]


def main(over: list[bool] | None = None) -> None:
    """Run the group on standard input; leave the rest to a fresh process once a cell has damaged this one.

    `over`: from `end_group_at_exit`, where that was called before.
    """
    emit, lifeline = Emitter(int(sys.argv[1])), int(sys.argv[2])
    die_with_parent(lifeline)
    over = end_group_at_exit() if over is None else over
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(all_threads=False)
    faulthandler.register(signal.SIGUSR1, all_threads=False, chain=True)  # where a cell hangs; it dies
    output = os.dup(2)
    group = json.load(sys.stdin)
    limits = Limits(*group["limits"])
    cells = [Cell(*fields) for fields in group["cells"]]
    if group["sampling"] is not None:
        sampling = Sampling(*group["sampling"])
        run_group(cells, group["package"], sampling, limits, emit, lambda cell: _open_output(output, cell))
        cells = []
    for cell in cells:
        _open_output(output, cell)
        if run_cell(cell, group["package"], limits, emit) not in HARMLESS:
            break
    over.append(True)


def end_group_at_exit() -> list[bool]:
    """Return a list; where it is not empty at this process's exit, the process's entire group is killed.

    Called before any suite is imported, so that this is the last of the exit handlers to run.
    """
    over: list[bool] = []
    atexit.register(lambda: os.killpg(0, signal.SIGKILL) if over else None)
    return over


def _open_output(output: int, cell: Cell) -> None:
    """Open output for `cell`, whatever an earlier cell did to its own, and mark where it begins."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.write(output, failure_classification.begin_mark(cell.id))


def run_cell(cell: Cell, package: str, limits: Limits, emit: Emitter) -> Status:
    """Run the cell, and report how it ended."""
    emit(CellStarted(cell.id, now()))
    start_s = time.monotonic()
    status, reason = Status.OK, ""
    try:
        _work(cell, package, limits, emit)
    except BaseException as error:
        status, reason = _fault(error, package, limits)
    emit(CellFinished(cell.id, status, reason, time.monotonic() - start_s))
    return status


def run_group(
    cells: list[Cell],
    package: str,
    sampling: Sampling,
    limits: Limits,
    emit: Emitter,
    open_output: Callable[[Cell], None],
) -> None:
    """Run interleaved cells, the baseline first, and report how each ended.

    Without their own limit they get the free memory: an allocation beyond it fails in its cell, where
    otherwise the kernel would choose a process to kill.
    """
    from harness.sweep.interleaved import WorkerHooks, run_together

    def emit_output(cell: Cell, output: Any) -> None:
        emit(_event_of(cell.id, output))

    def set_up(cell: Cell) -> Any:
        open_output(cell)
        return _set_up(cell, package, emit)

    # Before the limit, which counts from what is imported; its cell reports a failure later.
    for cell in cells:
        with suppress(Exception):
            _load(cell, package)
    limits = limits._replace(memory_B=limits.memory_B or free_memory(sys.modules.get("torch")))
    with memory_limit(limits.memory_B):
        tools = WorkerHooks(
            importlib.import_module(code_below(package, cells[0].suite).module),
            set_up,
            lambda error: _fault(error, package, limits),
            emit_output,
            emit,
        )
        run_together(cells, sampling, tools)


def _fault(error: BaseException, package: str, limits: Limits) -> tuple[Status, str]:
    """Return status and reason of a cell that raised, with the limit that it hit."""
    status, reason = failure_classification.of_exception(error, package)
    if status is Status.OUT_OF_MEMORY and limits.memory_B is not None:
        reason += f"; its limit is {limits.memory_B} B"
    return status, reason


def _work(cell: Cell, package: str, limits: Limits, emit: Emitter) -> None:
    suite, _ = _load(cell, package)
    with memory_limit(limits.memory_B):
        session = _set_up(cell, package, emit)
        with _closing_after_failure(suite, session):
            for output in suite.sample(session):
                emit(_event_of(cell.id, output))
        close(suite, session)


def _load(cell: Cell, package: str) -> tuple[Any, OptimizationModule | None]:
    """Return the suite, and the optimization's module: None where it has none, as the baseline."""
    code = code_below(package, cell.suite)
    suite = importlib.import_module(code.module)
    preload(suite)
    check_suite(suite, "techniques" in cell.config)
    for technique, _ in cell.config.get("techniques") or ():
        check_functions(technique)
    module = optimization_module(code, cell.module)
    if module is not None:
        check_optimization(module)
    elif cell.module not in (BASELINE, AGAIN) and "techniques" not in cell.config:
        raise ModuleNotFoundError(f"No module named '{code.package}.{cell.module}'")
    return suite, module


@cache
def preload(suite: Any) -> None:
    """Import what the suite's cells import later, so that a memory limit counts from after it in any child.

    Where that fails, a cell that needs it reports the failure.
    """
    if hasattr(suite, "preload"):
        with suppress(Exception):
            suite.preload()


def _set_up(cell: Cell, package: str, emit: Emitter) -> Any:
    """Return the cell's session: module and techniques applied, prepared, its result checked."""
    suite, module = _load(cell, package)
    call_unary_functions()
    if module is not None and (reason := unavailable(module, host(sys.modules.get("torch")))):
        raise Unavailable(reason)
    subject = suite.build(cell.config["workload"], cell.seed)
    if module is not None:
        subject = apply(module, subject, cell.config["settings"])
    if techniques := cell.config.get("techniques"):
        subject = suite.apply_techniques(subject, [(name, settings) for name, settings in techniques])
    session = prepared(suite, subject)
    with _closing_after_failure(suite, session):
        suite.check(session)
        emit(Conditions(cell.id, {str(k): str(v) for k, v in suite.conditions(session).items()}))
    return session


@contextmanager
def _closing_after_failure(suite: Any, session: Any) -> Iterator[None]:
    """Close the session of a cell that fails; where that fails too, the first failure is the reason."""
    try:
        yield
    except BaseException as error:
        try:
            close(suite, session)
        except BaseException as second:
            error.add_note(f"close() failed too: {second}")
        raise


def _event_of(cell_id: str, output: Any) -> CellEvent:
    """Return what a suite yielded, as an event; raises an error that names what is wrong with it."""
    if isinstance(output, Note):
        return CellNote(cell_id, failure_classification.clean(output.text))
    if not isinstance(output, Reading):
        raise TypeError(f"sample() yielded {type(output).__name__} {output!r:.200}, neither Reading nor Note")
    metric, unit, value, origin, method = output
    if not (isinstance(metric, str) and metric and isinstance(method, str)):
        raise TypeError(f"metric {metric!r}, method {method!r}: a metric has a name, a method is a str")
    if unit not in UNITS:
        raise ValueError(f"metric '{metric}': unit {unit!r}; allowed: {', '.join(sorted(UNITS))}")
    if origin not in list(Origin):
        raise ValueError(f"metric '{metric}': origin {origin!r}; allowed: {', '.join(Origin)}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"metric '{metric}': value {value!r:.200} is a {type(value).__name__}, not a number")
    if not math.isfinite(value):
        raise ValueError(f"metric '{metric}': value {value} is not finite; give the reason in a Note")
    return CellReading(cell_id, Reading(metric, unit, float(value), str(origin), method))


@cache
def host(torch: ModuleType | None) -> HostInfo:
    """Return this machine. `torch` is the library if the suite loaded it; a suite without it gets the CPU."""
    versions: Mapping[str, str] = environment.versions()
    cores = len(os.sched_getaffinity(0))
    if torch is None or not torch.cuda.is_available():
        return HostInfo("cpu", environment.cpu_model(), 1, memory_bytes(), cores, versions)
    device = torch.cuda.get_device_properties(0)
    return HostInfo("cuda", device.name, torch.cuda.device_count(), device.total_memory, cores, versions)


def free_memory(torch: ModuleType | None) -> int | None:
    """Return the bytes free for private memory; None with a GPU, whose driver maps more than it uses."""
    return psutil.virtual_memory().available if host(torch).device == "cpu" else None


@contextmanager
def memory_limit(memory_B: int | None) -> Iterator[None]:
    """Make allocations fail once private memory has grown by `memory_B` from here.

    What Python and the libraries already use is not counted.
    """
    if memory_B is None:
        yield
        return
    with private_limit(private_bytes() + memory_B):
        yield


if __name__ == "__main__":
    main()
