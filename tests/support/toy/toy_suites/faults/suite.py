"""A suite whose subject is a dict; each optimization is one way to go wrong. Imports no torch."""

import os

from harness.records import Note, Reading, WrongResult


def log(workload, line):
    if "log" in workload:
        fd = os.open(workload["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)


def build(workload, seed):
    log(workload, f"build {workload['name']}")
    return {"workload": workload, "seed": seed, "work": lambda: None}


def check(subject):
    if subject.get("act") == "be_wrong":
        raise WrongResult("loss 2.5 against 2.0, more than 1e-5 apart")


def conditions(subject):
    return {"device": "toy", "name": subject["workload"]["name"]}


def sample(subject):
    yield Reading("seed", "1", subject["seed"], "measured")
    yield Note("a remark")
    said = subject["work"]()
    yield Reading("time", "s", 0.25, "measured", "clock")
    yield from said or ()
    yield Reading("time", "s", 0.5, "measured", "clock")


def close(subject):
    log(subject["workload"], f"close {subject['workload']['name']}")
