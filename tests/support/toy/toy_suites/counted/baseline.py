"""Reports on its process, or ends the one that forked it."""

import faulthandler
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness.records import Reading
from toy_suites.counted.suite import note


@dataclass
class Settings:
    act: str = "look"


def apply(subject, settings):
    return subject | {"work": lambda: globals()[settings.act]()}


def look():
    """Report all that may tell a fork from a process of its own; the first two must differ."""
    tmpdir = os.environ["TMPDIR"]
    initial = Path("/proc/self/environ").read_bytes().split(b"\0")
    found = {
        "forked": b"harness.sweep.executors.template" in Path("/proc/self/cmdline").read_bytes(),
        "random": random.random(),
        "leads its session": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "folder shown": os.fsencode(f"TMPDIR={tmpdir}") in initial,
        "folder used": tempfile.gettempdir() == tmpdir and os.path.isdir(tmpdir),
        "environment": len(os.environ),
        "started as the worker": sys.modules["__main__"].__spec__.name == "harness.sweep.worker",
        "arguments": len(sys.argv),
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "inheritable": sum(
            os.get_inheritable(fd) for fd in range(20) if os.path.exists(f"/proc/self/fd/{fd}")
        ),
        "faulthandler": faulthandler.is_enabled(),
        "SIGINT": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "SIGPIPE": signal.getsignal(signal.SIGPIPE),
        "umask": os.umask(0o22),
        "stdin": len(sys.stdin.read()),
    }
    return [Reading(name, "1", float(value), "measured") for name, value in found.items()]


def leave_forked_daemon():
    """Leave a process in its own session that never executes another program."""
    if os.fork() == 0:
        os.setsid()
        note(os.getpid())
        time.sleep(1000)
    while "\n" not in Path(os.environ["TOY_LOG"]).read_text().rpartition("preload\n")[2]:
        time.sleep(0.01)


def end_parent():
    os.kill(os.getppid(), signal.SIGKILL)


def end_parent_and_leave():
    end_parent()
    os._exit(3)


def run_at_exit():
    import atexit

    atexit.register(note, "exit handler")
