"""A timed suite: each variant says how long it takes, and may go wrong at one of its turns. Imports no
torch."""

import os
import signal
import time

from harness.records import IN_OTHER_PROCESS, Note, Reading, Unavailable, WrongResult


def build(workload, seed):
    if workload.get("size", 0) > workload.get("fits", 1e9):
        raise MemoryError(f"{workload['size']} does not fit")
    return {"workload": workload, "turns": 0, "time_s": 1.0, "act": "", "at": 0}


def check(subject):
    if subject["act"] == "wrong":
        raise WrongResult("output: off by 1")
    if subject["act"] == "absent":
        raise Unavailable("has no such operation")


def conditions(subject):
    return {"device": "toy"}


def read_once(subject):
    yield Reading("flops", "1", 7.0, "calculated")
    yield Note("prepared")
    if subject["act"] == "fills in prepare":
        raise MemoryError("too much")
    if subject["act"] == "fills a process of its own":
        error = MemoryError("too much there")
        setattr(error, IN_OTHER_PROCESS, True)
        raise error
    yield Reading("process", "1", os.getpid(), "measured")


def timed(subject):
    return subject["act"] != "untimed"


def sample(subject):
    subject["turns"] += 1
    if subject["turns"] > subject["at"]:
        act(subject["act"])
    yield Reading("time", "s", subject["time_s"] * (1 + 0.001 * (subject["turns"] % 3)), "measured", "warm")
    yield Reading("clock", "Hz", 1e9, "measured", "toy")


def act(name):
    if name == "raise":
        raise RuntimeError("broke in a turn")
    if name == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "hang":
        time.sleep(100)


def close(subject):
    if subject["act"] == "breaks in close":
        raise RuntimeError("close failed")
