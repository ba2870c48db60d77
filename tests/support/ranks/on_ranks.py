"""What the ranks of test_ranks.py and test_launcher.py are asked to do."""

import ctypes
import os
import signal
import sys
import threading
import time

from harness.records import Unavailable

RANK = int(os.environ.get("RANK", "-1"))


def number(state):
    return RANK


def number_with_rank_0_last(state):
    if RANK == 0:
        time.sleep(0.2)
    return RANK


def keep(state, value):
    state["kept"] = [value, RANK]


def kept(state):
    return state["kept"]


def reduced(state, elements):
    import torch
    import torch.distributed as dist

    tensor = torch.arange(elements, dtype=torch.float64) * (RANK + 1)
    dist.all_reduce(tensor)
    return tensor.tolist()


def length(state, text):
    return len(text)


def text_of(state, count):
    return "x" * count


def shout(state, lines):
    for line in range(lines):
        print('{"answer": "printed, not answered"}', line)
    sys.stdout.flush()
    os.write(1, b'{"answer": 0}\n')
    return "said"


class OwnMemoryError(MemoryError):
    """As numpy has one."""


RAISED = {
    "ValueError": ValueError("three heads"),
    "Unavailable": Unavailable("no such library"),
    "MemoryError": OwnMemoryError("too large"),
}


def misbehave(state, ways, wait_s=0.5):
    """Make rank n do `ways[n]` while the others are in a collective with it; `wait_s` later, for most."""
    how = ways[RANK]
    if how:
        if how in RAISED:
            raise RAISED[how]
        if how == "no JSON":
            return object()
        print(how)
        WAYS[how](wait_s)
    return all_reduce_on_and_on()


def all_reduce_on_and_on():
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(1 << 16)
    while True:
        dist.all_reduce(tensor)


def _later(act, wait_s):
    threading.Timer(wait_s, act).start()


def _hang(wait_s):
    while True:
        time.sleep(0.01)


def _hang_in_c(wait_s):
    """Hold the interpreter's lock, so that no Python thread runs."""
    ctypes.PyDLL(None).sleep(600)


def _print_and_exit(wait_s):
    print("these are the last words")
    os._exit(7)


WAYS = {
    "SIGKILL": lambda wait_s: _later(lambda: os.kill(os.getpid(), signal.SIGKILL), wait_s),
    "SIGSEGV": lambda wait_s: ctypes.string_at(0),
    "exit": _print_and_exit,
    "hang": _hang,
    "hang in C": _hang_in_c,
}
