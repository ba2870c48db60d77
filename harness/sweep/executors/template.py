"""One process per suite that has imported it and forks a child for each group, which spares the imports.

The local executor's side is `Template` and `Forked`. The process itself is
`python -m harness.sweep.executors.template SOCKET LIFELINE MODULE`: it imports, and computes nothing.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

START_S = 120.0  # how long the imports may take at most; a suite that takes longer gets no template
ANSWER_S = 30.0  # how long a fork may take, or an exit status; after that the template is given up

MESSAGE_B = 1 << 16
EXIT_GRACE_S = 10.0


class Forked:
    """A child that a template forked, with the part of `subprocess.Popen`'s interface that is needed.

    Only the template can ask the kernel for its exit status, and does so when asked: until then the kernel
    does not reuse its number. `returncode` stays None where the template died before.
    """

    def __init__(self, template: Template, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.gone = False  # it has ended, and its number may be reused
        self._template = template

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if not self.gone:
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> int | None:
        """Return its exit status as `subprocess` does; raises TimeoutExpired where it does not end."""
        if self.gone:
            return self.returncode
        if not _ends(self.pid, timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        self.gone = True
        self.returncode = self._template.reap(self.pid)
        return self.returncode


class Template:
    """A process that imports a suite's module, within `start_s` seconds, and then forks.

    Where an import fails it is never ready: the cells' own processes report that.
    """

    def __init__(self, suite: str, temporary: Path, environ: Mapping[str, str], start_s: float) -> None:
        temporary.mkdir(parents=True)
        self._temporary = temporary
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        read, self._lifeline = os.pipe2(os.O_CLOEXEC)
        command = [sys.executable, "-u", "-m", __name__, str(theirs.fileno()), str(read), suite]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environ,
                pass_fds=(theirs.fileno(), read),
                start_new_session=True,
            )
        except BaseException:
            self._socket.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(read)
        self._ready = False
        self._deadline_s = time.monotonic() + start_s

    def is_ready(self, wait: bool) -> bool:
        """Return whether it has imported the suite and lives; `wait` until it has or its time is over."""
        patience_s = max(0.0, self._deadline_s - time.monotonic())
        if not self._ready and self._lifeline >= 0:
            if select.select([self._socket], [], [], patience_s if wait else 0.0)[0]:
                self._ready = self._answer(ANSWER_S) is not None
            elif wait or not patience_s:
                self.close()
        return self._ready and not self.lost

    @property
    def lost(self) -> bool:
        """Return whether it was ready once and is no more."""
        return self._ready and (self._lifeline < 0 or self._process.poll() is not None)

    def fork(self, temporary: Path, fds: Sequence[int]) -> Forked | None:
        """Fork a child with these: standard input, output, events, lifeline.

        Return None where the template does not answer, the kernel refuses a fork, or `temporary` is longer
        than the template's own.
        """
        if len(os.fsencode(temporary)) > len(os.fsencode(self._temporary)):
            return None
        answer = self._ask({"TMPDIR": str(temporary)}, fds)
        return Forked(self, answer["pid"]) if answer is not None and "pid" in answer else None

    def reap(self, pid: int) -> int | None:
        """Return the exit status of a child that has ended; None where this process is gone."""
        answer = self._ask({"reap": pid})
        return None if answer is None else int(answer["returncode"])

    def close(self) -> None:
        """End it; its children go on."""
        if self._lifeline < 0:
            return
        os.close(self._lifeline)
        self._lifeline = -1
        self._socket.close()
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=EXIT_GRACE_S)

    def _ask(self, request: Mapping[str, Any], fds: Sequence[int] = ()) -> Any:
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
            return self._answer(ANSWER_S)
        except OSError:
            self.close()
            return None
        except BaseException:  # a signal: the answer that is still to come would be taken for the next one's
            self.close()
            raise

    def _answer(self, patience_s: float) -> Any:
        """Return its next answer; None, and it is ended, where none comes."""
        self._socket.settimeout(patience_s)
        with suppress(OSError):
            if answer := self._socket.recv(MESSAGE_B):
                return json.loads(answer)
        self.close()
        return None


def _ends(pid: int, patience_s: float) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:  # reaped by another, because its template died
        return True
    try:
        return bool(select.select([pidfd], [], [], patience_s)[0])
    finally:
        os.close(pidfd)


def main() -> None:
    """Import the suite and what it preloads, then become each child in turn, by a fork.

    Any failure ends the process before it is ready.
    """
    from harness.instruments.process import die_with_parent
    from harness.sweep import worker

    connection, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    connection.set_inheritable(False)
    die_with_parent(lifeline)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    over = worker.end_group_at_exit()  # before the imports, as in a worker: their own handlers run first
    worker.preload(importlib.import_module(sys.argv[3]))
    worker.host(sys.modules.get("torch"))  # else each child reads all versions; with a GPU nothing forks
    _end_threads()
    tmpdir, room_B = _initial_tmpdir(), len(os.environb[b"TMPDIR"])
    connection.send(b"{}")
    events, childs_lifeline = _serve(connection, lifeline, tmpdir, room_B)
    sys.argv = [str(worker.__file__), str(events), str(childs_lifeline)]
    sys.modules["__main__"] = worker  # which processes that the cells spawn import, as in a worker
    worker.main(over)


def _serve(connection: socket.socket, lifeline: int, tmpdir: int, room_B: int) -> tuple[int, int]:
    """Answer requests, and never return; in each child, return its events and lifeline."""
    while True:
        message, fds, _, _ = socket.recv_fds(connection, MESSAGE_B, 4, socket.MSG_CMSG_CLOEXEC)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if "reap" in request:
            status = os.waitpid(request["reap"], 0)[1]
            connection.send(json.dumps({"returncode": os.waitstatus_to_exitcode(status)}).encode())
            continue
        try:
            pid = os.fork()
        except OSError as error:
            connection.send(json.dumps({"refused": str(error)}).encode())
            pid = -1
        if pid == 0:
            stdin, output, events, childs_lifeline = fds
            os.close(lifeline)
            _become_child(request["TMPDIR"], stdin, output, tmpdir, room_B)
            with connection:  # the child answers: its group and its mark are there from then on
                connection.send(json.dumps({"pid": os.getpid()}).encode())
            return events, childs_lifeline
        for fd in fds:
            os.close(fd)


def _become_child(temporary: str, stdin: int, output: int, tmpdir: int, room_B: int) -> None:
    """Give this fork what a process of its own has: a session, its descriptors, its folder, its seeds.

    A fork shows its parent's initial environment in /proc, so the folder is written there in place:
    `kill_by_tmpdir` finds by it what the cells fork, in any session. It is at most `room_B` long.
    """
    os.setsid()
    os.dup2(stdin, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(stdin)
    os.close(output)
    os.environ["TMPDIR"] = temporary
    tempfile.tempdir = None
    ctypes.memmove(tmpdir, os.fsencode(temporary).ljust(room_B, b"\0"), room_B)
    if (numpy := sys.modules.get("numpy")) is not None:  # `random` does this itself; torch's seed is fixed
        numpy.random.seed()


def _initial_tmpdir() -> int:
    """Return the address of TMPDIR's value in the environment with which this process began (proc(5)).

    Raises OSError where the kernel does not report it.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # from the third on
    begin = int(fields[50 - 3])
    environ = Path("/proc/self/environ").read_bytes()
    if not begin or ctypes.string_at(begin, len(environ)) != environ:
        raise OSError("the initial environment is not where /proc/self/stat says")
    return begin + (b"\0" + environ).index(b"\0TMPDIR=") + len(b"TMPDIR=")


def _end_threads() -> None:
    """Make OpenBLAS end its threads, as it does before a fork; raises RuntimeError where others remain.

    A fork copies the calling thread only, and a lock that another one holds would stay locked.
    """
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    deadline_s = time.monotonic() + 1.0
    while len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > deadline_s:
            raise RuntimeError("a thread that an import started remains")
        time.sleep(0.001)


if __name__ == "__main__":
    main()
