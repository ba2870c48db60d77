"""Finds the processes that a test has left, by a mark in their environment."""

import os
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil

MARK = "HARNESS_TEST_MARK"


def marked(monkeypatch):
    """Set a mark in the environment of every process that is started from here on."""
    mark = uuid4().hex
    monkeypatch.setenv(MARK, mark)
    return mark


def bearing(mark):
    """Return the processes with the mark, except this one."""
    found, entry = [], f"{MARK}={mark}".encode()
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if entry in environment and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def running(mark, word):
    """Return those with that word in their command."""
    found = []
    for process in bearing(mark):
        with suppress(psutil.Error):
            if word in process.cmdline():
                found.append(process)
    return found


def wait_for(condition, limit_s=60):
    deadline_s = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return value


def wait_until_none(mark):
    wait_for(lambda: not bearing(mark), limit_s=20)
