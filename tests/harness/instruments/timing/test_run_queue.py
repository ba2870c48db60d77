"""The clock that stands still while a thread waits for a core: on invented waits, and on real ones."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.config.code_fingerprint import ROOT
from harness.instruments.timing.core_account import SCHEDSTAT, _waited_s, core_clock


def test_what_was_waited_is_taken_off() -> None:
    now_s, waited_s = 10.0, 4.0
    clock = core_clock(lambda: now_s, lambda: waited_s)
    begin_s = clock()
    now_s, waited_s = 15.0, 6.0
    assert clock() - begin_s == 3.0


def test_a_wait_between_the_two_readings_is_not_lost() -> None:
    waits_s = iter([0.0, 2.0, 2.0])
    nows_s = iter([5.0, 7.0])
    assert core_clock(lambda: next(nows_s), lambda: next(waits_s))() == 5.0


def test_without_the_kernels_word_the_clock_is_as_it_is(tmp_path: Path) -> None:
    assert _waited_s(tmp_path / "none") is None


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="this kernel does not say what a thread waited")
def test_sleep_counts_as_time() -> None:
    clock = core_clock()
    begin_s, wall_s = clock(), time.perf_counter()
    time.sleep(0.05)
    taken_s = clock() - begin_s
    assert 0.02 < taken_s <= time.perf_counter() - wall_s


CONTENDED = """
import os, time
from harness.instruments.timing.core_account import core_clock
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
other = os.fork()
if not other:
    until_s = time.monotonic() + 5.0
    while time.monotonic() < until_s:
        pass
    os._exit(0)
clock = core_clock()
begin_s, wall_s, cpu_s = clock(), time.perf_counter(), time.thread_time()
while time.thread_time() - cpu_s < 0.2:
    pass
print(clock() - begin_s, time.perf_counter() - wall_s)
os.kill(other, 9)
"""


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="this kernel does not say what a thread waited")
def test_two_processes_on_one_core_each_take_as_long_as_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONTENDED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ran_s, wall_s = map(float, done.stdout.split())
    assert 0.19 <= ran_s < 0.8 * wall_s, "0.2 s of the core's time were taken; another process had the rest"
