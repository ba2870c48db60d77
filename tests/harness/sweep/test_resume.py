"""A sweep goes on where it stopped: which records stand; killed with signal 9 it leaves nothing behind."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest
from test_runner import SWEEP, assert_nothing_is_left, marked
from toy.sweep import PACKAGE, cell, environ, group, sweep

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
    command = [sys.executable, str(SWEEP), str(folder), json.dumps({"groups": groups, "workers": workers})]
    return subprocess.Popen(command, env=environ(), stderr=subprocess.PIPE, text=True)


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
    """Wait until the kernel has ended the children of a killed sweep."""
    deadline_s = time.monotonic() + 5
    while alive := [process for process in marked(folder) if not is_over(process)]:
        assert time.monotonic() < deadline_s, alive
        time.sleep(0.01)


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


def test_finished_cells_are_not_run_again(tmp_path):
    log = tmp_path / "log"
    workload = {"log": str(log)}
    cells = [cell("nothing", workload=workload), cell("raise_error", workload=workload)]
    first = sweep(tmp_path / "out", [group(*cells)])
    again = sweep(tmp_path / "out", [group(*cells, cell("nothing", workload=workload, repeat=1))])
    assert {one: again[one] for one in first} == first
    assert log.read_text().count("build raise_error") == 1
    assert log.read_text().count("build nothing") == 2


def test_what_a_limit_ended_is_run_again_under_another(tmp_path):
    one = cell("nothing", amount=1.5)
    assert sweep(tmp_path, [group(one)], Limits(0.5))[one.id].status == "timed_out"
    before = (tmp_path / "records.jsonl").read_text()
    assert sweep(tmp_path, [group(one)], Limits(0.5))[one.id].status == "timed_out"
    assert (tmp_path / "records.jsonl").read_text() == before
    assert sweep(tmp_path, [group(one)], Limits(20.0))[one.id].status == "ok"
    assert [record.status for record in read_records(tmp_path)] == ["ok"]


def test_a_cell_whose_process_was_killed_is_run_again_by_the_same_command(tmp_path):
    """Killed with signal 9 from here, while it works; its record stays before the new one."""
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


def test_what_retry_lists_is_run_again_and_nothing_else():
    ends = ("ok", "crashed", "timed_out", "unavailable")
    cells = [cell("nothing", repeat=number) for number in range(len(ends))]
    records = {
        one.id: Record(one, status, limits=Limits(9.0), environment="here")
        for one, status in zip(cells, ends, strict=True)
    }
    left = pending([group(*cells)], records, Limits(9.0), "here", retry=("crashed", "timed_out"))
    assert [one.cells for one in left] == [(cells[1], cells[2])]


@pytest.mark.parametrize(
    ("reason", "again"),
    [
        ("killed by SIGKILL; last printed:\nworking", True),
        ("killed by SIGTERM", True),
        (STATUS_UNKNOWN, True),
        ("killed by SIGSEGV; last printed:\n...", False),
        ("killed by SIGABRT", False),
        ("exit code 1 before the cell ended", False),
        ("ValueError: killed by SIGKILL", False),
    ],
)
def test_only_what_something_outside_ended_is_run_again(reason, again):
    one = cell("nothing")
    records = {one.id: Record(one, "crashed", reason)}
    assert bool(pending([group(one)], records, Limits(9.0), "here")) is again


@pytest.mark.parametrize(
    ("status", "limits", "environment", "again"),
    [
        ("ok", Limits(5.0), "other", False),
        ("crashed", Limits(5.0), "other", False),
        ("wrong_result", Limits(5.0), "other", False),
        ("timed_out", Limits(5.0), "here", True),
        ("timed_out", Limits(9.0, 7), "other", False),
        ("out_of_memory", Limits(9.0, 8), "here", True),
        ("out_of_memory", Limits(9.0, 7), "here", False),
        ("unavailable", Limits(5.0), "here", False),
        ("unavailable", Limits(9.0, 7), "other", True),
    ],
)
def test_which_records_stand(status, limits, environment, again):
    one, new = cell("nothing"), cell("nothing", repeat=1)
    records = {one.id: Record(one, status, limits=limits, environment=environment)}
    left = pending([group(one, new), group(new)], records, Limits(9.0, 7), "here")
    assert left == [Group((one, new) if again else (new,), PACKAGE)]
