"""Depths that a second process traces: the timelines of this one, also where the second one fails."""

import os
import time
from contextlib import closing

import pytest

from harness.instruments.memory.dry_run.calling_line import TwoProcesses
from harness.instruments.memory.memory_timeline import MemoryEvent, OpSite, Timeline


def of_depth(depth: int) -> Timeline:
    place = OpSite("forward 0", "aten.mm.default", (depth, 3), "models/model.py:12")
    return Timeline([MemoryEvent(0, 512 * depth, place, 1)], ["activations"], 0, 512)


@pytest.mark.parametrize("how", ["answers", "raises", "exits", "is killed"])
def test_a_depth_that_was_traced_ahead_or_failed_is_that_of_this_process(how: str) -> None:
    here, traced_here = os.getpid(), []

    def trace(depth: int) -> Timeline:
        if os.getpid() == here:
            traced_here.append(depth)
        elif how == "raises":
            raise ValueError("only there")
        elif how != "answers":
            os._exit(3) if how == "exits" else os.kill(os.getpid(), 9)
        return of_depth(depth)

    with closing(TwoProcesses(trace)) as processes:
        processes.ahead(4)
        assert [processes(depth) for depth in (2, 3, 4)] == [of_depth(2), of_depth(3), of_depth(4)]
    assert traced_here == ([2, 3] if how == "answers" else [2, 3, 4])


def test_no_process_is_left_where_a_depth_is_not_asked_for() -> None:
    processes = TwoProcesses(lambda depth: time.sleep(600))
    processes.ahead(4)
    number = next(iter(processes._ahead.values()))[0].pid
    processes.close()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
