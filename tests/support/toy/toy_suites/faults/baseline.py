"""Does what it is told to do, by name, between the first reading and the second."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from harness.records import Reading, Unavailable


@dataclass
class Settings:
    act: str = "nothing"
    amount: float = 0.0


def apply(subject, settings):
    acts = globals()
    return subject | {"work": lambda: acts[settings.act](subject, settings.amount), "act": settings.act}


def nothing(subject, amount):
    time.sleep(amount)


def be_wrong(subject, amount):
    raise AssertionError("a wrong result is never sampled")


def raise_error(subject, amount):
    raise ValueError("the text\nof the error \udc80")


def call_library(subject, amount):
    import json

    json.loads("{")


def chain(subject, amount):
    try:
        raise MemoryError
    except MemoryError as error:
        raise RuntimeError("while building") from error


def unavailable_here(subject, amount):
    raise Unavailable("needs two GPUs; this host has none")


def need_library(subject, amount):
    import no_such_library_anywhere.part  # noqa: F401


def need_part(subject, amount):
    import json.no_such_part  # noqa: F401


def leave(subject, amount):
    sys.exit(int(amount))


def leave_at_once(subject, amount):
    print("going")
    os._exit(int(amount))


def abort(subject, amount):
    print("about to abort")
    os.abort()


def segfault(subject, amount):
    ctypes.string_at(0)


def kill_itself(subject, amount):
    print("last words")
    os.kill(os.getpid(), signal.SIGKILL)


def hang(subject, amount):
    print("hanging")
    time.sleep(1000)


def hang_in_c(subject, amount):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    libc = ctypes.PyDLL(None)  # keeps the interpreter's lock: no Python runs meanwhile
    libc.sleep(1000)


def flood(subject, amount):
    line = b"x" * 99 + b"\n"
    for _ in range(50):
        os.write(1, line * 10_000)
        os.write(2, line * 10_000)
    print("the end of the flood")


def flood_and_abort(subject, amount):
    flood(subject, amount)
    os.abort()


def close_everything(subject, amount):
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def print_much(subject, amount):
    for number in range(100):
        print("line", number)


def close_output(subject, amount):
    os.close(1)
    os.close(2)
    time.sleep(amount)


def take_memory(subject, amount):
    subject["held"] = bytearray(int(amount))


def throw_bad_alloc(subject, amount):
    new = ctypes.CDLL("libstdc++.so.6")._Znwm
    new.argtypes = [ctypes.c_size_t]
    new(int(amount))


def leave_child(subject, amount):
    """Leave a process of the same group that would go on for long."""
    subprocess.Popen(["sleep", "1000"])


def leave_daemon(subject, amount):
    """Leave a process in its own session that holds every descriptor it could get."""
    subprocess.Popen(["sleep", "1000"], start_new_session=True, close_fds=False)


def leave_daemon_and_hang(subject, amount):
    leave_daemon(subject, amount)
    leave_child_and_hang(subject, amount)


def leave_child_and_hang(subject, amount):
    leave_child(subject, amount)
    hang_in_c(subject, amount)


def hang_at_exit(subject, amount):
    import atexit

    atexit.register(time.sleep, 1000)


def leave_files(subject, amount):
    import tempfile

    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("left")
    return [Reading("inside", "1", float(os.environ["TMPDIR"] in file.name), "measured")]


def not_a_number(subject, amount):
    return [Reading("loss", "1", float("nan"), "measured")]


def unknown_unit(subject, amount):
    return [Reading("size", "GB", 1.0, "measured")]


def unknown_origin(subject, amount):
    return [Reading("size", "B", 1.0, "guessed")]


def text_value(subject, amount):
    return [Reading("size", "B", "1.0", "measured")]


def no_reading(subject, amount):
    return [("size", "B", 1.0, "measured", "")]


def meet(subject, amount):
    folder = subject["workload"]["folder"]
    os.mkdir(f"{folder}/{subject['seed']}")
    deadline_s = time.monotonic() + 10
    while len(os.listdir(folder)) < 2:
        assert time.monotonic() < deadline_s, "nobody came"
        time.sleep(0.01)


def look_around(subject, amount):
    """Report whether the harness loaded torch, and whether core dumps are off."""
    import resource

    core_B = resource.getrlimit(resource.RLIMIT_CORE)[0]
    return [
        Reading("torch", "1", float("torch" in sys.modules), "measured"),
        Reading("core", "B", core_B, "measured"),
        Reading("stdin", "B", len(sys.stdin.read()), "measured"),
    ]


def fork(subject, amount):
    """Fork a copy of the worker that goes on as if it were the worker."""
    subject["pid"] = os.fork()
    if subject["pid"]:
        os.waitpid(subject["pid"], 0)


def write_nonsense_among_events(subject, amount):
    os.write(int(sys.argv[1]), b"nonsense\n")
