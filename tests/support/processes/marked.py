"""Finds what a test has left: processes, by a mark in their environment or by their parent, and files."""

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
    found, entry = [], f"{MARK}={mark}".encode()
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if entry in environment and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def running(mark, word):
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


def left(mark):
    """Return processes below this one or with the mark (forked ranks have it), shared files, namespaces."""
    found = {*bearing(mark)}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.add(process)
    folders = (Path("/dev/shm"), Path("/run/netns"))  # `ip netns list` lists the second
    return {f"process {one.pid}" for one in found} | {
        str(path) for folder in folders if folder.is_dir() for path in folder.iterdir()
    }


def network_namespaces():
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):
            found.add(os.readlink(path))
    return found


def wait_until_none(mark):
    wait_for(lambda: not bearing(mark), limit_s=20)
