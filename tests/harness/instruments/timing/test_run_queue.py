"""The clock that stands still while a thread waits for a core, and what other processes take of the cores."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.config.code_fingerprint import ROOT
from harness.instruments.timing.core_account import (
    PROC_STAT,
    SCHEDSTAT,
    OthersShare,
    _waited_s,
    core_clock,
    seconds_of,
)

needs_schedstat = pytest.mark.skipif(
    not SCHEDSTAT.exists(), reason="this kernel does not say what a thread waited"
)


def test_what_was_waited_is_taken_off_also_between_the_two_readings(tmp_path: Path) -> None:
    now_s, waited_s = 10.0, 4.0
    clock = core_clock(lambda: now_s, lambda: waited_s)
    begin_s = clock()
    now_s, waited_s = 15.0, 6.0
    assert clock() - begin_s == 3.0
    waits_s, nows_s = iter([0.0, 2.0, 2.0]), iter([5.0, 7.0])
    assert core_clock(lambda: next(nows_s), lambda: next(waits_s))() == 5.0
    assert _waited_s(tmp_path / "none") is None


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


@needs_schedstat
def test_two_processes_on_one_core_each_take_as_long_as_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONTENDED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ran_s, wall_s = map(float, done.stdout.split())
    assert 0.19 <= ran_s < 0.8 * wall_s, "0.2 s of the core's time were taken; another process had the rest"


STAT = """cpu  999 999 999 999 999 999 999 999 0 0
cpu0 100 20 7000 9000 5 6 7 30 11 12
cpu1 1000 200 7000 9000 5 6 7 300 11 12
cpu2 5 5 5 5 5 5 5 5 5 5
intr 12345
"""
BUSY_S = 0.6
LOOP = f"import time; end = time.time() + {BUSY_S}\nwhile time.time() < end: pass"


def test_user_time_niced_work_and_steal_of_the_processors_in_use_are_added() -> None:
    assert seconds_of(STAT, {0, 1}, 100) == pytest.approx((100 + 20 + 30 + 1000 + 200 + 300) / 100)


@pytest.mark.skipif(not PROC_STAT.is_file(), reason="needs /proc/stat")
def test_work_of_this_process_and_its_children_is_not_that_of_others() -> None:
    """A neighbour's work shows in both, so the difference between the two counts is what is compared."""
    cores, ticks = os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK")
    others, begin_s = OthersShare(), time.monotonic()
    before_s = seconds_of(PROC_STAT.read_text(), cores, ticks)
    subprocess.run([sys.executable, "-c", LOOP], check=True)
    exec(LOOP, {})
    share, passed_s = others.share(), time.monotonic() - begin_s
    every_s = seconds_of(PROC_STAT.read_text(), cores, ticks) - before_s
    assert os.times().children_user > 0.1
    assert share * len(cores) * passed_s < every_s - 0.1
