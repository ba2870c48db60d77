"""The common part of executors of jobs, with processes of this machine as its queue."""

import json
import shutil
import subprocess
import sys

import pytest
from toy.jobs_sweep import begun, gated, wait_for
from toy.sweep import LIMITS, cell, environ, group

from harness.commands.main import main
from harness.config.schema import SlurmSchema
from harness.records import LOST, Status
from harness.sweep.environment import describe
from harness.sweep.executors import ExecutorError, jobs, slurm
from harness.sweep.executors.job_folder import JOBS, JobEnd, JobFolder, JobSpec
from harness.sweep.executors.jobs import JobsExecutor, QueueRefusal
from harness.sweep.executors.slurm import SlurmQueue
from harness.sweep.runner import run
from harness.sweep.store import Store

pytestmark = pytest.mark.usefixtures("toy_suites")


class Processes:
    """A queue whose jobs begin at once; `takes` of them at the same time, and each runs `program`.

    At most `largest` are submitted together; `together` has how many were.
    """

    title = "processes"

    def __init__(self, takes=2, program="harness.sweep.executors.job", largest=100):
        self.takes, self.program, self.largest = takes, program, largest
        self.started = {}
        self.together = []
        self.most = 0

    def open(self):
        pass

    def submit(self, jobs, timed):
        alive = sum(process.poll() is None for process in self.started.values())
        if alive + len(jobs) > self.takes or len(jobs) > self.largest:
            raise QueueRefusal("the queue is full")
        self.together.append(len(jobs))
        self.most = max(self.most, alive + len(jobs))
        for job in jobs:
            command = [sys.executable, "-m", self.program, str(job.path)]
            self.started[job.name] = subprocess.Popen(command, env=environ(), stderr=subprocess.DEVNULL)

    def ends(self, jobs):
        ended = JobEnd(Status.UNAVAILABLE, "ended", by_itself=True)
        known = {name: self.started[name].poll() for name in jobs if name in self.started}
        return {name: None if status is None else ended for name, status in known.items()}

    def cancel(self, names):
        for name in self.started.keys() & names:
            self.started[name].kill()
            self.started[name].wait()

    def close(self):
        pass


def sweep(folder, groups, queue, workers=2, groups_per_job=1):
    executor = JobsExecutor(folder, queue, workers, groups_per_job, "test", 0)
    with Store(folder) as store:
        run(groups, store, executor, LIMITS, executor.environment())
        return dict(store.records)


def test_jobs_end_as_the_local_executor_would_and_name_their_node(tmp_path):
    acts = {"nothing": "ok", "raise_error": "crashed", "kill_itself": "crashed", "be_wrong": "wrong_result"}
    queue = Processes()
    records = sweep(tmp_path, [group(cell(act)) for act in acts], queue, groups_per_job=3)
    assert {record.cell.workload: record.status for record in records.values()} == acts
    assert len(queue.started) == 2
    assert {record.environment for record in records.values()} == {describe("test").digest}
    assert not list((tmp_path / JOBS).glob("*/"))


def test_a_queue_that_takes_nothing_and_a_program_that_never_begins_are_one_line(tmp_path, monkeypatch):
    quick(monkeypatch)
    for queue, said in (
        (Processes(takes=0), "executor=processes: the queue is full"),
        (Processes(program="no_such_module"), "executor=processes: its job ended before it began: "),
    ):
        with pytest.raises(ExecutorError, match=said):
            sweep(tmp_path, [group(cell("nothing")), group(cell("hang"))], queue)
        assert not list((tmp_path / JOBS).glob("*/"))


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
    quick(monkeypatch)
    cells = [one._replace(repeat=i, id=f"{one.id}{i}") for i in range(2) for one in gated(tmp_path, 1)]
    queue = Processes()

    def kill_first(event):
        if begun(tmp_path)["gated0"] and not (tmp_path / "gate").exists():
            next(iter(queue.started.values())).kill()
            (tmp_path / "gate").touch()

    executor = JobsExecutor(tmp_path / "out", queue, 1, 1, "test", 0)
    with Store(tmp_path / "out") as store:
        run([group(one) for one in cells], store, executor, LIMITS, executor.environment(), kill_first)
        assert [record.status for record in store.records.values()] == ["unavailable", "ok"]
        assert store.records[cells[0].id].reason == "its job ended"


class Forgetful(Processes):
    """A queue that does not know its jobs in its first `times` answers; at the next one, a gate opens."""

    def __init__(self, gate, times):
        super().__init__()
        self.gate, self.times, self.asked, self.cancelled = gate, times, 0, []

    def ends(self, jobs):
        self.asked += 1
        if self.asked <= self.times:
            return {}
        self.gate.touch()
        return super().ends(jobs)

    def cancel(self, names):
        super().cancel(names)
        self.cancelled += names


def quick(monkeypatch):
    monkeypatch.setattr(jobs, "SETTLE_S", 0.5)
    monkeypatch.setattr(jobs, "ASK_S", (0.2, 1.0))


@pytest.mark.parametrize("times", [2, 100])
def test_a_job_that_the_queue_does_not_know_is_ended_unless_it_is_known_again(tmp_path, monkeypatch, times):
    quick(monkeypatch)
    queue = Forgetful(tmp_path / "gate", times)
    (record,) = sweep(tmp_path / "out", [group(one) for one in gated(tmp_path, 1)], queue).values()
    lost = ("unavailable", f"{LOST}is not known to processes any more")
    assert (record.status, record.reason) == (("ok", "") if times == 2 else lost)
    assert queue.asked > 1
    assert queue.cancelled == ([] if times == 2 else list(queue.started))
    at_most_once = ({1},) if times == 2 else ({1}, set())  # one that is lost may be ended before it begins
    assert set(begun(tmp_path).values()) in at_most_once


def programs(folder, monkeypatch, **texts):
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "cat").symlink_to(shutil.which("cat"))
    monkeypatch.setenv("PATH", str(folder))


def test_states_of_slurm_are_statuses_and_accounting_knows_older_jobs(tmp_path, monkeypatch):
    rows = "1|1|OUT_OF_MEMORY|n1|OutOfMemory|a\n2|2|DEADLINE|n2|None|b\n"
    rows += "3|3|RUNNING|n1|None|c\n4|4|BOOT_FAIL|n3|None|d"
    older = "cat <<END\n5|5|CANCELLED by 7|n1|e\nEND"
    programs(tmp_path / "bin", monkeypatch, squeue=f"cat <<END\n{rows}\nEND", sacct=older)
    found = SlurmQueue(SlurmSchema()).ends(dict.fromkeys("abcdef", ""))
    assert found == {
        "a": JobEnd(Status.OUT_OF_MEMORY, "1 exceeded Slurm's memory limit (executor.memory_GB)"),
        "b": JobEnd(Status.TIMED_OUT, "2 exceeded Slurm's deadline"),
        "c": None,
        "d": JobEnd(Status.UNAVAILABLE, "4 ended when a node of n3 failed to boot"),
        "e": JobEnd(Status.UNAVAILABLE, "5 was cancelled"),
    }


def test_tasks_of_an_array_are_jobs_of_their_own(tmp_path, monkeypatch):
    """Slurm lists tasks that have not begun on one line, with the id of the last one to begin."""
    rows = "7_0|8|RUNNING|n1|None|a\n7_1|9|PREEMPTED|n2|None|a\n"
    rows += "7_[2-3,5-9:2%2]|7|PENDING||JobArrayTaskLimit|a\n20_[0-1]|20|PENDING||PartitionNodeLimit|b"
    older = "30_[0-4]|30|CANCELLED by 7|None assigned|c\n40_1|43|NODE_FAIL|n3|d"
    texts = {"squeue": f"cat <<END\n{rows}\nEND", "sacct": f"cat <<END\n{older}\nEND"}
    programs(tmp_path / "bin", monkeypatch, **texts, scancel=f'echo "$@" >{tmp_path}/cancelled')
    queue = SlurmQueue(SlurmSchema())
    waiting = {"a.2": "", "a.3": "", "a.5": "", "a.7": "", "a.9": ""}
    ended = {"a.1": "9", "b.1": "", "c.4": "", "d.1": "43"}
    unknown = {"a.1": "another", "a.4": "", "a.6": "", "a.10": "", "c.5": "", "a": ""}
    assert queue.ends({"a.0": "8", **waiting}) == dict.fromkeys(["a.0", *waiting])
    never = "20_1 cannot start: Slurm's reason is PartitionNodeLimit"
    assert queue.ends(ended) == {
        "a.1": JobEnd(Status.UNAVAILABLE, "7_1 was preempted"),
        "b.1": JobEnd(Status.UNAVAILABLE, never, never=True),
        "c.4": JobEnd(Status.UNAVAILABLE, "30_4 was cancelled"),
        "d.1": JobEnd(Status.UNAVAILABLE, "40_1 ended when a node of n3 failed"),
    }
    assert queue.ends(unknown) == {}
    queue.cancel(["a.0", "a.1", "a.7"])
    assert (tmp_path / "cancelled").read_text() == "7_0 7_7\n"


def test_no_cluster_here_is_one_line_and_exit_status_2(tmp_path, monkeypatch, capsys):
    pytest.importorskip("submitit", reason="needs the extra slurm")
    programs(tmp_path / "bin", monkeypatch)
    words = ["suite=interconnect_formula", "workloads=[gemma_12b]", "only=[baseline]", "executor=slurm"]
    assert main([*words, f"out={tmp_path / 'out'}"]) == 2
    said = "harness: executor=slurm: no sbatch here; run this on a login node of the cluster"
    assert capsys.readouterr().err.splitlines()[-1] == said
    assert not list((tmp_path / "out" / JOBS).glob("*/"))
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ExecutorError, match="submitit is not installed; the extra `slurm` has it"):
        sweep(tmp_path / "out", [group(cell("nothing"))], SlurmQueue(SlurmSchema()))


def test_the_container_of_a_cell_is_part_of_its_identity(tmp_path):
    """Its name is shown, and not its folder."""

    def environment(**settings):
        return slurm.create(tmp_path, 1, settings).environment()

    apptainer = "apptainer exec --nv /home/{} python3"
    images = [environment(python=apptainer.format(one)) for one in ("a/1.sif", "a/2.sif", "b/1.sif")]
    assert environment().ranks == "slurm: 1 x 1"
    assert images[0].ranks.startswith("slurm: 1 x 1, python=apptainer exec --nv 1.sif python3 (")
    pyxis = environment(srun_args=["--container-image=nvcr.io#nvidia/pytorch:24.05-py3"])
    assert pyxis.ranks.startswith("slurm: 1 x 1, srun_args=--container-image=pytorch:24.05-py3 (")
    assert len({one.host for one in (environment(), pyxis, *images)}) == 5
    assert slurm.parameters(SlurmSchema(), "job", timed=True)["exclusive"]  # timed cells share no node
    assert "exclusive" not in slurm.parameters(SlurmSchema(), "job", timed=False)
    assert "exclusive" not in slurm.parameters(SlurmSchema(exclusive=False), "job", timed=True)


class Waiting(Forgetful):
    """A queue whose jobs wait; it keeps whether they could still begin when they were cancelled."""

    def __init__(self, gate, answers):
        super().__init__(gate, 100)
        self.jobs, self.answers = {}, answers

    def submit(self, jobs, timed):
        self.jobs |= {job.name: job for job in jobs}

    def cancel(self, names):
        self.cancelled += [self.jobs[name].is_forbidden for name in names]
        if not self.answers:
            raise OSError("no answer")


@pytest.mark.parametrize("answers", [True, False])
def test_a_job_that_has_not_begun_and_is_not_known_cannot_begin_any_more(tmp_path, monkeypatch, answers):
    """A queue that cannot cancel it now does not end the sweep."""
    quick(monkeypatch)
    queue = Waiting(tmp_path / "gate", answers)
    (record,) = sweep(tmp_path / "out", [group(cell("nothing"))], queue).values()
    assert record.status == "unavailable"
    assert queue.cancelled == [True]


def test_an_earlier_job_that_the_queue_knows_again_is_waited_for(tmp_path, monkeypatch):
    quick(monkeypatch)
    queue, groups = Forgetful(tmp_path / "gate", times=1), [group(one) for one in gated(tmp_path, 1)]
    kind = JobsExecutor(tmp_path, queue, 1, 1, "test", 0).environment().host
    spec = JobSpec(tuple(groups), LIMITS, "test", kind)
    queue.submit(JobFolder.create(tmp_path / "out", [spec]), timed=False)
    wait_for(lambda: begun(tmp_path))
    records = sweep(tmp_path / "out", groups, queue)
    assert [record.status for record in records.values()] == ["ok"]
    assert set(begun(tmp_path).values()) == {1}
