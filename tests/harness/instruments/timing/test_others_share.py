"""What other processes take of the processors, as /proc/stat counts it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from harness.instruments.timing.core_account import PROC_STAT, OthersShare, seconds_of

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
    assert seconds_of(STAT, {0}, 100) == pytest.approx(1.5)


@pytest.mark.skipif(not PROC_STAT.is_file(), reason="needs /proc/stat")
def test_work_of_this_process_and_its_children_is_not_that_of_others() -> None:
    """A neighbour's work shows in both, so the difference between the two counts is what is compared."""
    count = len(os.sched_getaffinity(0))
    ticks = os.sysconf("SC_CLK_TCK")
    others, begin_s = OthersShare(), time.monotonic()
    before_s = seconds_of(PROC_STAT.read_text(), os.sched_getaffinity(0), ticks)
    used_s = time.process_time()
    subprocess.run([sys.executable, "-c", LOOP], check=True)
    exec(LOOP, {})
    share = others.share()
    assert share is not None
    passed_s = time.monotonic() - begin_s
    every_s = seconds_of(PROC_STAT.read_text(), os.sched_getaffinity(0), ticks) - before_s
    child = os.times()
    assert time.process_time() - used_s > 0.1
    assert child.children_user > 0.1
    assert share * count * passed_s < every_s - 0.1
