"""The common part of executors of jobs, with processes of this machine as its queue."""

import json
import subprocess
import sys

import pytest
from toy.jobs_sweep import begun, gated
from toy.sweep import LIMITS, cell, environ, group

from harness.environment import describe
from harness.executors import LOST, ExecutorError, jobs
from harness.executors.job_folder import JOBS
from harness.executors.jobs import JobsExecutor, QueueRefusal, Resources
from harness.executors.submitted_job import JobEnd
from harness.records import Status
from harness.runner import run
from harness.store import Store

pytestmark = pytest.mark.usefixtures("toy_suites")


class Processes:
    """A queue whose jobs begin at once; `takes` of them at the same time, and each runs `program`."""

    title = "processes"

    def __init__(self, takes=2, program="harness.executors.job"):
        self.takes, self.program = takes, program
        self.started = {}
        self.most = 0

    def open(self):
        pass

    def submit(self, job, timed):
        alive = sum(process.poll() is None for process in self.started.values())
        if alive >= self.takes:
            raise QueueRefusal("the queue is full")
        self.most = max(self.most, alive + 1)
        command = [sys.executable, "-m", self.program, str(job.path)]
        self.started[job.name] = subprocess.Popen(command, env=environ(), stderr=subprocess.DEVNULL)

    def ends(self, jobs):
        return {
            name: None
            if self.started[name].poll() is None
            else JobEnd(Status.UNAVAILABLE, "ended", by_itself=True)
            for name in jobs
            if name in self.started
        }

    def cancel(self, names):
        for name in names:
            self.started[name].kill()
            self.started[name].wait()

    def close(self):
        pass


def sweep(folder, groups, queue, workers=2, groups_per_job=1):
    executor = JobsExecutor(folder, queue, workers, groups_per_job, Resources("test", 0))
    with Store(folder) as store:
        run(groups, store, executor, LIMITS, executor.environment())
        return dict(store.records)


def test_jobs_end_as_the_local_executor_would_and_name_their_node(tmp_path):
    acts = ("nothing", "raise_error", "kill_itself", "be_wrong")
    queue = Processes()
    records = sweep(tmp_path, [group(cell(act)) for act in acts], queue, groups_per_job=3)
    assert {record.cell.workload: record.status for record in records.values()} == {
        "nothing": "ok",
        "raise_error": "crashed",
        "kill_itself": "crashed",
        "be_wrong": "wrong_result",
    }
    assert len(queue.started) == 2
    assert {record.environment for record in records.values()} == {describe("test").digest}
    assert not list((tmp_path / JOBS).glob("*/"))


def test_a_full_queue_is_waited_for(tmp_path):
    queue = Processes(takes=1)
    cells = [cell("nothing", repeat=i) for i in range(3)]
    records = sweep(tmp_path, [group(one) for one in cells], queue)
    assert {record.status for record in records.values()} == {"ok"}
    assert queue.most == 1


def test_a_queue_that_takes_nothing_is_one_line(tmp_path):
    with pytest.raises(ExecutorError, match="executor=processes: the queue is full"):
        sweep(tmp_path, [group(cell("nothing"))], Processes(takes=0))
    assert not list((tmp_path / JOBS).glob("*/"))


def test_a_program_that_never_begins_ends_the_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "SETTLE_S", 0.1)
    with pytest.raises(ExecutorError, match="executor=processes: its job ended before it began: "):
        sweep(tmp_path, [group(cell("nothing"))], Processes(program="no_such_module"))


def test_nodes_of_one_folder_are_alike_and_other_cells_are_tried_again(tmp_path):
    """Reports pool the repeats of a cell, so that those of unlike nodes must not stand in one folder."""
    one, two = cell("nothing"), cell("nothing", repeat=1)
    sweep(tmp_path, [group(one)], Processes())
    (first,) = (tmp_path / JOBS).glob("nodes-*.json")
    kept = first.read_text()
    first.write_text(json.dumps({**json.loads(kept), "cpu": "another"}))
    records = sweep(tmp_path, [group(one), group(two)], Processes())
    assert records[one.id].status == "ok"
    assert records[two.id].status == "unavailable"
    assert records[two.id].reason.startswith(f"{LOST}ran on a node unlike the first of this folder (cpu: ")
    first.write_text(kept)
    records = sweep(tmp_path, [group(one), group(two)], Processes())
    assert {record.status for record in records.values()} == {"ok"}


def test_a_lost_job_ends_its_cells_and_skips_no_other_repeat(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "SETTLE_S", 0.1)
    cells = [one._replace(repeat=i, id=f"{one.id}{i}") for i in range(2) for one in gated(tmp_path, 1)]
    queue = Processes()

    def kill_first(event):
        if begun(tmp_path)["gated0"] and not (tmp_path / "gate").exists():
            next(iter(queue.started.values())).kill()
            (tmp_path / "gate").touch()

    executor = JobsExecutor(tmp_path / "out", queue, 1, 1, Resources("test", 0))
    with Store(tmp_path / "out") as store:
        run([group(one) for one in cells], store, executor, LIMITS, executor.environment(), kill_first)
        assert [record.status for record in store.records.values()] == ["unavailable", "ok"]
        assert store.records[cells[0].id].reason == "its job ended"
