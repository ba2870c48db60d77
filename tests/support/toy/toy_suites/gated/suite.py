"""A suite whose cells log when they begin and end; between, they wait for a file and then `takes_s`.

It imports no torch.
"""

import os
import time
from pathlib import Path

from harness.records import Note, Reading


def build(workload, seed):
    return workload


def check(subject):
    pass


def conditions(subject):
    return {"node": os.environ.get("SLURMD_NODENAME") or os.environ.get("TOY_NODE", "")}


def log(subject, line):
    fd = os.open(subject["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{line} {subject['name']} {os.getpid()}\n".encode())
    os.close(fd)


def sample(subject):
    log(subject, "begin")
    yield Note("waiting")
    while not Path(subject["gate"]).exists():
        time.sleep(0.05)
    time.sleep(subject.get("takes_s", 0.0))
    log(subject, "end")
    yield Reading("time", "s", 0.25, "measured", "clock")


def close(subject):
    pass
