"""One child process of the local executor: start it, read its events, end it, and report how it died.

The child leads its own process group, and its folder for temporary files marks, in the environment, every
process that it starts.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import select
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from harness.instruments.process import COMPILED_FOLDER
from harness.records import STATUS_UNKNOWN, Group, Limits, Status
from harness.sweep import failure_classification
from harness.sweep.executors import CellEvent, CellFinished, CellStarted, CellTurn, event_from_json, now
from harness.sweep.executors.template import Forked, Template
from harness.sweep.in_child import python_path

logger = logging.getLogger(__name__)

CHUNK_B = 1 << 16
TAIL_B = 1 << 16
READS = 64
STACK_GRACE_S = 0.3
COMPILED = "compiled"
EXIT_GRACE_S = 10.0
"""How long a process may take to exit after its last cell (at most a cell's own limit), or once killed."""


class Child:
    """A worker that runs one group; registers its descriptors in `selector`, with itself as the data."""

    def __init__(
        self,
        group: Group,
        limits: Limits,
        temporary: Path,
        selector: selectors.BaseSelector,
        threads: int = 1,
        template: Template | None = None,
    ) -> None:
        self.dead = False
        self._group = group
        self._limits = limits
        self._temporary = temporary
        self._selector = selector
        self._left = {cell.id: cell for cell in group.cells}  # those that have not ended, in order
        self._begun_s: dict[str, float] = {}  # when each of them started
        self._current: str | None = None  # the running one
        self._overdue = False
        self._to_blame: str | None = None  # the cell for which it was killed
        self._killed_s = math.inf
        self._line = self._tail = b""
        self._oom_kills = oom_kills()
        self._process, self._events, self._output, self._lifeline = _start(
            group, limits, temporary, threads, template
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        self._open = {self._events, self._output, self._pidfd}
        for fd in self._open:
            selector.register(fd, selectors.EVENT_READ, self)
        self._since_s = time.monotonic()

    @property
    def deadline_s(self) -> float:
        """Return when its time limit ends, on the monotonic clock."""
        if self._overdue:
            return self._killed_s + EXIT_GRACE_S
        patience_s = self._limits.timeout_s if self._left else min(self._limits.timeout_s, EXIT_GRACE_S)
        return self._since_s + patience_s

    @property
    def rest(self) -> Group:
        """Return the cells that have not ended, possibly none."""
        return self._group._replace(cells=tuple(self._left.values()))

    def attend(self, fd: int) -> Iterator[CellEvent]:
        """Handle its descriptor `fd`, which is ready; never waits."""
        if fd == self._pidfd:
            self.dead = True
        elif fd == self._output:
            self._tail = (self._tail + self._take(fd))[-TAIL_B:]
        elif fd == self._events:
            *lines, self._line = (self._line + self._take(fd)).split(b"\n")
            for line in lines:
                yield from self._on_event_line(line)

    def kill_if_overdue(self) -> None:
        """End its process group once its time limit is over; give up where the kernel cannot end it."""
        if time.monotonic() < self.deadline_s:
            return
        if not self._overdue:
            self._overdue, self._killed_s = True, time.monotonic()
            self._to_blame = self._current or next(iter(self._left), None)
            self._request_stack_dump()
            self._kill()
        else:
            logger.warning("process %d did not end when killed; continuing without it", self._process.pid)
            self.dead = True

    def _request_stack_dump(self) -> None:
        """Make it print its stack and die, so that the record shows where it hung."""
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.send_signal(signal.SIGUSR1)
            self._process.wait(timeout=STACK_GRACE_S)

    def reap(self) -> Iterator[CellEvent]:
        """Clear what a dead child left, and end the cell that was running."""
        self.clear()
        for fd in tuple(self._open):
            yield from self.attend(fd)
        self._forget(*self._open)
        if (cell := self._blamed()) is not None:
            yield from self._end(cell)

    def clear(self) -> None:
        """Kill its group and everything else with its mark; remove its temporary files."""
        self._kill()
        kill_by_tmpdir(self._temporary)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=EXIT_GRACE_S)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _on_event_line(self, line: bytes) -> Iterator[CellEvent]:
        """Handle the event on `line`, if it belongs to the running cell."""
        try:
            event = event_from_json(line)
        except ValueError:
            logger.warning("a child wrote %r among its events", line[:100])
            return
        together = self._group.sampling is not None
        if event.cell not in self._left or not (together or event.cell == next(iter(self._left))):
            return
        if isinstance(event, CellStarted):
            self._begun_s[event.cell] = time.monotonic()
        if isinstance(event, CellStarted | CellTurn):
            self._current = event.cell
        if isinstance(event, CellFinished):
            self._current = None
            del self._left[event.cell]
        if isinstance(event, CellFinished) or (together and isinstance(event, CellStarted | CellTurn)):
            self._since_s = time.monotonic()
        if not isinstance(event, CellTurn):
            yield event

    def _blamed(self) -> str | None:
        """Return the cell that caused the process's death.

        It is None where all had ended, or the one before caused it.
        """
        if self._overdue:
            return self._to_blame if self._to_blame in self._left else None
        if self._current is None and len(self._left) == len(self._group.cells):
            return next(iter(self._left))
        return self._current

    def _end(self, cell: str) -> Iterator[CellEvent]:
        """Return the end of a cell that could not report it itself."""
        if cell not in self._begun_s:
            yield CellStarted(cell, now())
        took_s = time.monotonic() - self._begun_s.get(cell, self._since_s)
        printed_by_it = self._tail.rpartition(failure_classification.begin_mark(cell))[2]
        printed = failure_classification.last_lines(printed_by_it.decode("utf-8", "replace"))
        if self._overdue:
            status, reason = Status.TIMED_OUT, f"over its limit of {self._limits.timeout_s:g} s{printed}"
        elif self._process.returncode is None:
            status, reason = Status.CRASHED, f"{STATUS_UNKNOWN}{printed}"
        else:
            killed = oom_kills() - self._oom_kills
            status, reason = failure_classification.of_exit(self._process.returncode, printed_by_it, killed)
        del self._left[cell]
        yield CellFinished(cell, status, reason, took_s)

    def _take(self, fd: int) -> bytes:
        """Read what is available from `fd`, bounded; unregister it at its end."""
        chunks = []
        with suppress(BlockingIOError):
            for _ in range(READS):
                chunks.append(os.read(fd, CHUNK_B))
                if not chunks[-1]:
                    self._forget(fd)
                    break
        return b"".join(chunks)

    def _forget(self, *fds: int) -> None:
        for fd in fds:
            self._open.discard(fd)
            self._selector.unregister(fd)
            os.close(fd)

    def _kill(self) -> None:
        """Kill the group, unless its number may have been reused."""
        process = self._process
        gone = process.gone if isinstance(process, Forked) else process.returncode is not None
        with suppress(ProcessLookupError):
            if not gone:
                os.killpg(self._process.pid, signal.SIGKILL)


def _start(
    group: Group, limits: Limits, temporary: Path, threads: int, template: Template | None
) -> tuple[subprocess.Popen[bytes] | Forked, int, int, int]:
    """Start a worker; return it with this process's ends of its events, output and lifeline.

    Where the template does not answer, the worker is started without it.
    """
    temporary.mkdir(parents=True)
    events, events_write = os.pipe2(os.O_CLOEXEC)
    output, output_write = os.pipe2(os.O_CLOEXEC)
    lifeline_read, lifeline = os.pipe2(os.O_CLOEXEC)
    job = json.dumps({"limits": limits, **group._asdict()})
    stdin = os.memfd_create("group")
    theirs = (stdin, output_write, events_write, lifeline_read)
    process: subprocess.Popen[bytes] | Forked | None = None
    try:
        with open(stdin, "w", closefd=False) as file:
            file.write(job)
        os.lseek(stdin, 0, os.SEEK_SET)
        if template is not None:
            process = template.fork(temporary, theirs)
        if process is None:
            worker = [sys.executable, "-u", "-m", "harness.sweep.worker"]
            process = subprocess.Popen(
                [*worker, str(events_write), str(lifeline_read)],
                stdin=stdin,
                stdout=output_write,
                stderr=output_write,
                env=child_environ(temporary, threads),
                pass_fds=(events_write, lifeline_read),
                start_new_session=True,
            )
    except BaseException:
        for fd in (events, output, lifeline):
            os.close(fd)
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    os.set_blocking(events, False)
    os.set_blocking(output, False)
    return process, events, output, lifeline


def child_environ(temporary: Path, threads: int) -> dict[str, str]:
    """Return the child's environment.

    It is this process's, with temporary files of its own, its share of cores and this harness. Compiled code
    is shared by later children, in a folder that is removed with the sweep.
    """
    compiled = str(temporary.parent / COMPILED)
    ours = {
        "OMP_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": f"{compiled}/inductor",
        "TRITON_CACHE_DIR": f"{compiled}/triton",
        COMPILED_FOLDER: compiled,
    }
    return {**ours, **os.environ, "TMPDIR": str(temporary), "PYTHONPATH": python_path()}


def oom_kills() -> int:
    """Return how many processes the kernel has killed for memory since boot; 0 where it does not count."""
    try:
        match = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.M)
    except OSError:
        return 0
    return int(match[1]) if match else 0


def kill_by_tmpdir(temporary: Path) -> None:
    """Kill every process whose TMPDIR is `temporary` or lies below it, in any process group."""
    mark = b"TMPDIR=" + os.fsencode(temporary)
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(psutil.Error, OSError):
            with open(f"/proc/{entry}/environ", "rb", buffering=0) as file:  # fast, as all processes are read
                if mark not in file.readall():
                    continue
            process = psutil.Process(int(entry))
            folder = Path(process.environ().get("TMPDIR", ""))
            if process.pid != os.getpid() and folder.is_relative_to(temporary):
                pidfd = os.pidfd_open(process.pid)
                try:  # psutil's wait would reap a child of this process, and its exit status would be lost
                    process.kill()
                    select.select([pidfd], [], [], 1.0)
                finally:
                    os.close(pidfd)
