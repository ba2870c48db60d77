"""A sweep goes on where it stopped: which records stand; killed with signal 9 it leaves nothing behind."""

import json
import os
import random
import signal
import time
from collections import Counter

import psutil
import pytest
from test_runner import assert_nothing_is_left
from toy.jobs_sweep import wait_for
from toy.sweep import PACKAGE, cell, group, marked, sweep
from toy.sweep import start as start_groups

from harness.records import STATUS_UNKNOWN, Group, Limits, Record
from harness.sweep.executors import CellReading
from harness.sweep.runner import pending
from harness.sweep.store import read_records

pytestmark = pytest.mark.usefixtures("toy_suites")

KILLS = 20
CELLS = 105  # each act fifteen times
PER_GROUP = 6
CELLS_BEFORE_A_KILL = 3
ACTS = ("nothing", "nothing", "leave_child", "raise_error", "leave_daemon", "leave_at_once", "leave_files")


def start(folder, cells, workers=1):
    groups = [cells[i : i + PER_GROUP] for i in range(0, len(cells), PER_GROUP)]
    return start_groups(folder, groups, workers)


def cells_that_log(log):
    workloads = [{"log": str(log), "name": f"w{i}"} for i in range(CELLS)]
    return [cell(ACTS[i % len(ACTS)], workload=workload, amount=0.02) for i, workload in enumerate(workloads)]


def finished(folder):
    there = (folder / "records.jsonl").exists()
    return {record.cell.workload for record in read_records(folder)} if there else set()


def begun(log):
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split()[1] for line in lines if line.startswith("build")]


def wait_for_the_kernel(folder):
    wait_for(lambda: all(map(is_over, marked(folder))))


def is_over(process):
    try:
        leader = os.getpgid(process.pid)
        left = process.name() == "sleep" and (leader == process.pid or not psutil.pid_exists(leader))
        return left or process.status() == psutil.STATUS_ZOMBIE
    except (psutil.Error, ProcessLookupError):
        return True


def without_times(records):
    return {r.cell.id: r._replace(started_at="", duration_s=0.0) for r in records}


@pytest.mark.slow
def test_killed_at_twenty_random_instants_a_sweep_is_finished_by_the_next_start(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "out"
    cells, moments = cells_that_log(log), random.Random(2)
    undisturbed = start(tmp_path / "undisturbed", cells, workers=2)
    assert undisturbed.communicate()[1] == ""
    log.unlink()
    kills = 0
    while kills < KILLS and len(finished(folder)) < CELLS:
        done, before = finished(folder), len(begun(log))
        sweep = start(folder, cells, workers=1 + kills % 2)
        until = before + moments.randint(0, CELLS_BEFORE_A_KILL)
        while len(begun(log)) < until and sweep.poll() is None:
            time.sleep(0.002)
        time.sleep(moments.uniform(0.0, 0.05))
        sweep.kill()
        kills += 1
        assert "Error" not in sweep.communicate()[1]
        wait_for_the_kernel(folder)
        assert finished(folder) >= done  # nothing lost
        assert not set(begun(log)[before:]) & done  # nothing run again
    assert kills > KILLS // 2  # however slowly this process is woken
    assert finished(folder)
    last = start(folder, cells, workers=2)
    assert last.communicate()[1] == ""
    assert last.returncode == 0
    assert_nothing_is_left(folder)
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert Counter(line["cell"]["id"] for line in lines) == Counter(one.id for one in cells)
    assert len(begun(log)) <= CELLS + 2 * KILLS  # at most the cells under way, one a worker
    assert without_times(read_records(folder)) == without_times(read_records(tmp_path / "undisturbed"))


def test_a_cell_whose_process_was_killed_is_run_again_by_the_same_command(tmp_path):
    hanging, after = cell("hang"), cell("nothing")

    def kill(event):
        if isinstance(event, CellReading) and event.cell == hanging.id:
            for process in marked(tmp_path):
                process.send_signal(signal.SIGKILL)

    first = sweep(tmp_path, [group(hanging, after)], on_event=kill)
    assert first[hanging.id].status == "crashed"
    assert first[hanging.id].reason.startswith("killed by SIGKILL")
    assert first[after.id].status == "ok"
    again = sweep(tmp_path, [group(hanging, after)], Limits(2.0))
    assert (again[hanging.id].status, again[after.id]) == ("timed_out", first[after.id])
    lines = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["crashed", "ok", "timed_out"]
    assert {record.status for record in read_records(tmp_path)} == {"timed_out", "ok"}
    assert_nothing_is_left(tmp_path)


HERE = Limits(9.0, 7)


def again(status, reason="", limits=HERE, environment="here", retry=()):
    """Return whether a cell with such a record is run again, with one that has none."""
    one, new = cell("nothing"), cell("nothing", repeat=1)
    records = {one.id: Record(one, status, reason, limits=limits, environment=environment)}
    left = pending([group(one, new), group(new)], records, HERE, "here", retry=retry)
    assert left in ([Group((one, new), PACKAGE)], [Group((new,), PACKAGE)])
    return one in left[0].cells


def test_which_records_stand():
    for status, limits, environment, expected in (
        ("ok", Limits(5.0), "other", False),
        ("crashed", Limits(5.0), "other", False),
        ("wrong_result", Limits(5.0), "other", False),
        ("timed_out", Limits(5.0), "here", True),
        ("timed_out", Limits(9.0, 7), "other", False),
        ("out_of_memory", Limits(9.0, 8), "here", True),
        ("out_of_memory", Limits(9.0, 7), "here", False),
        ("unavailable", Limits(5.0), "here", False),
        ("unavailable", Limits(9.0, 7), "other", True),
    ):
        found = again(status, limits=limits, environment=environment)
        assert found is expected, (status, limits, environment)
    listed = ("crashed", "timed_out")
    ends = {end: again(end, retry=listed) for end in ("ok", "crashed", "timed_out", "unavailable")}
    assert ends == {"ok": False, "crashed": True, "timed_out": True, "unavailable": False}


def test_only_what_something_outside_ended_is_run_again():
    for reason, expected in {
        "killed by SIGKILL; last printed:\nworking": True,
        "killed by SIGTERM": True,
        STATUS_UNKNOWN: True,
        "killed by SIGSEGV; last printed:\n...": False,
        "killed by SIGABRT": False,
        "exit code 1 before the cell ended": False,
        "ValueError: killed by SIGKILL": False,
    }.items():
        assert again("crashed", reason) is expected, reason
