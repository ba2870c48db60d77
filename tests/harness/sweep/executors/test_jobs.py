"""The common part of executors of jobs, with processes of this machine as its queue."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from toy.jobs_sweep import begun, gated, wait_for
from toy.sweep import LIMITS, cell, environ, group

from harness.commands.compare.comparison import read_folder
from harness.commands.compare.lines import HOST, condition_changes
from harness.config.code_fingerprint import ROOT
from harness.config.schema import SlurmSchema
from harness.records import LOST, Status
from harness.sweep.environment import describe, from_dict
from harness.sweep.executors import ExecutorError, jobs, slurm
from harness.sweep.executors.job_folder import JOBS, JobEnd, JobFolder, JobSpec, alike
from harness.sweep.executors.jobs import JobResources, JobsExecutor, QueueRefusal
from harness.sweep.executors.slurm import SlurmQueue
from harness.sweep.runner import run
from harness.sweep.store import OtherSchemaError, Store

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
        return {
            name: None
            if self.started[name].poll() is None
            else JobEnd(Status.UNAVAILABLE, "ended", by_itself=True)
            for name in jobs
            if name in self.started
        }

    def cancel(self, names):
        for name in self.started.keys() & names:
            self.started[name].kill()
            self.started[name].wait()

    def close(self):
        pass


def sweep(folder, groups, queue, workers=2, groups_per_job=1):
    executor = JobsExecutor(folder, queue, workers, groups_per_job, JobResources("test", 0))
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


def test_jobs_are_submitted_together_and_in_halves_where_the_queue_takes_fewer(tmp_path):
    queue = Processes(takes=5, largest=2)
    groups = [group(cell("nothing", repeat=i)) for i in range(5)]
    records = sweep(tmp_path, groups, queue, workers=5)
    assert {record.status for record in records.values()} == {"ok"}
    assert len(records) == 5
    assert queue.together == [2, 1, 2]
    assert not list((tmp_path / JOBS).glob("*/"))


def test_a_queue_that_takes_nothing_is_one_line(tmp_path):
    with pytest.raises(ExecutorError, match="executor=processes: the queue is full"):
        sweep(tmp_path, [group(cell("nothing")), group(cell("hang"))], Processes(takes=0))
    assert not list((tmp_path / JOBS).glob("*/"))


def test_a_program_that_never_begins_ends_the_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "SETTLE_S", 0.1)
    with pytest.raises(ExecutorError, match="executor=processes: its job ended before it began: "):
        sweep(tmp_path, [group(cell("nothing"))], Processes(program="no_such_module"))


class Blind(Processes):
    """A queue of two nodes, of which the second does not see the folder; a job goes to it once one runs."""

    def submit(self, jobs, timed):
        super().submit(jobs[:1], timed)
        for job in jobs[1:]:
            wait_for(jobs[0].claimed)
            self.started[job.name] = subprocess.Popen(["false"])


def test_one_node_that_does_not_see_the_folder_ends_the_sweep(tmp_path, monkeypatch):
    quick(monkeypatch)
    queue = Blind()
    with pytest.raises(ExecutorError, match=r"executor=processes: its job ended before it began: ") as raised:
        sweep(tmp_path / "out", [group(one) for one in gated(tmp_path, 2)], queue)
    assert re.search(r"its node does not see /.*; expected nodes that share the folder", str(raised.value))
    assert [process.poll() is None for process in queue.started.values()] == [False, False]
    assert not list((tmp_path / "out" / JOBS).glob("*/"))


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

    executor = JobsExecutor(tmp_path / "out", queue, 1, 1, JobResources("test", 0))
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


class Waiting(Forgetful):
    """A queue whose jobs wait; it keeps whether they could still begin when they were cancelled."""

    def __init__(self, gate):
        super().__init__(gate, 100)
        self.jobs = {}

    def submit(self, jobs, timed):
        self.jobs |= {job.name: job for job in jobs}

    def cancel(self, names):
        self.cancelled += [self.jobs[name].is_forbidden for name in names]


def quick(monkeypatch):
    monkeypatch.setattr(jobs, "SETTLE_S", 0.5)
    monkeypatch.setattr(jobs, "ASK_S", (0.2, 1.0))


def test_a_job_that_the_queue_knows_again_goes_on(tmp_path, monkeypatch):
    quick(monkeypatch)
    queue = Forgetful(tmp_path / "gate", times=2)
    records = sweep(tmp_path / "out", [group(one) for one in gated(tmp_path, 1)], queue)
    assert [record.status for record in records.values()] == ["ok"]
    assert queue.cancelled == []
    assert set(begun(tmp_path).values()) == {1}


def test_a_job_that_the_queue_still_does_not_know_is_ended(tmp_path, monkeypatch):
    quick(monkeypatch)
    queue = Forgetful(tmp_path / "gate", times=100)
    (record,) = sweep(tmp_path / "out", [group(one) for one in gated(tmp_path, 1)], queue).values()
    assert (record.status, record.reason) == (
        "unavailable",
        f"{LOST}is not known to processes any more",
    )
    assert queue.asked > 1
    assert queue.cancelled == list(queue.started)


def test_an_earlier_job_that_the_queue_knows_again_is_waited_for(tmp_path, monkeypatch):
    quick(monkeypatch)
    queue, groups = Forgetful(tmp_path / "gate", times=1), [group(one) for one in gated(tmp_path, 1)]
    kind = JobsExecutor(tmp_path, queue, 1, 1, JobResources("test", 0)).environment().host
    spec = JobSpec(tuple(groups), LIMITS, "test", kind)
    queue.submit(JobFolder.create(tmp_path / "out", [spec]), timed=False)
    wait_for(lambda: begun(tmp_path))
    records = sweep(tmp_path / "out", groups, queue)
    assert [record.status for record in records.values()] == ["ok"]
    assert set(begun(tmp_path).values()) == {1}


def test_a_job_that_has_not_begun_and_is_not_known_cannot_begin_any_more(tmp_path, monkeypatch):
    quick(monkeypatch)
    queue = Waiting(tmp_path / "gate")
    (record,) = sweep(tmp_path / "out", [group(cell("nothing"))], queue).values()
    assert record.status == "unavailable"
    assert queue.cancelled == [True]


def test_a_queue_that_cannot_cancel_now_does_not_end_the_sweep(tmp_path, monkeypatch):
    quick(monkeypatch)
    queue = Waiting(tmp_path / "gate")

    def cancel(names):
        raise OSError("no answer")

    monkeypatch.setattr(queue, "cancel", cancel)
    (record,) = sweep(tmp_path / "out", [group(cell("nothing"))], queue).values()
    assert record.status == "unavailable"


def test_nodes_with_other_libraries_than_the_submitter_answer_for_unavailable_cells(tmp_path):
    """As in a container: a cell that was unavailable on the first node is not submitted again."""
    one = cell("unavailable_here")
    queue = Processes()
    sweep(tmp_path, [group(one)], queue)
    (first,) = (tmp_path / JOBS).glob("nodes-*.json")
    node = from_dict(json.loads(first.read_text()))
    changed = node._replace(python="3.0.0", commit="", dirty=False)
    first.write_text(json.dumps(changed.to_dict()))
    (tmp_path / f"environment-{changed.digest}.json").write_text(json.dumps(changed.to_dict()))
    (tmp_path / f"environment-{node.digest}.json").unlink()
    here = JobsExecutor(tmp_path, queue, 1, 1, JobResources("test", 0)).environment()
    assert alike(tmp_path, here) == {changed.digest}
    first.write_text(json.dumps(node.to_dict()))
    assert alike(tmp_path, here) == set()


def test_the_container_of_a_cell_is_part_of_its_identity(tmp_path):
    def environment(**settings):
        return slurm.create(tmp_path, 1, settings).environment()

    one = environment(python="apptainer exec --nv /home/alice/torch.sif python3")
    assert environment().ranks == "slurm: 1 x 1"
    assert one.ranks.startswith("slurm: 1 x 1, python=apptainer exec --nv torch.sif python3 (")
    pyxis = environment(srun_args=["--container-image=nvcr.io#nvidia/pytorch:24.05-py3"])
    assert pyxis.ranks.startswith("slurm: 1 x 1, srun_args=--container-image=pytorch:24.05-py3 (")
    others = (
        environment(),
        environment(python="apptainer exec --nv /home/alice/torch2.sif python3"),
        environment(python="apptainer exec --nv /home/bob/torch.sif python3"),
        pyxis,
    )
    assert len({one.host, *(other.host for other in others)}) == 5


def test_records_of_two_containers_are_compared_as_of_two_hosts(tmp_path):
    for image in ("first", "second"):
        executor = slurm.create(tmp_path / image, 2, {"python": f"apptainer exec {image}.sif python3"})
        executor._queue = Processes()
        with Store(tmp_path / image) as store:
            run([group(cell("nothing"))], store, executor, LIMITS, executor.environment())
    a, b = read_folder(tmp_path / "first"), read_folder(tmp_path / "second")
    (change,) = condition_changes(a, b, [])
    assert change.name == HOST
    assert "first.sif" in change.a
    assert "second.sif" in change.b


def test_records_of_another_schema_version_are_refused_before_anything_is_queued(tmp_path):
    (tmp_path / "records.jsonl").write_text('{"schema": 1}\n')
    queue = Processes()
    with pytest.raises(OtherSchemaError, match=r"line 1: a record of schema version 1, not 2"):
        sweep(tmp_path, [group(cell("nothing"))], queue)
    assert queue.started == {}
    status, error = command(["executor=slurm"], tmp_path)
    assert status == 2
    assert "line 1: a record of schema version 1" in error


def programs(folder, monkeypatch, **texts):
    """Let these be the only programs that are found: what each prints."""
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "cat").symlink_to(shutil.which("cat"))
    monkeypatch.setenv("PATH", str(folder))


def test_states_of_slurm_are_statuses_and_accounting_knows_older_jobs(tmp_path, monkeypatch):
    rows = (
        "1|1|OUT_OF_MEMORY|n1|OutOfMemory|a\n2|2|DEADLINE|n2|None|b\n"
        "3|3|RUNNING|n1|None|c\n4|4|BOOT_FAIL|n3|None|d"
    )
    older = "5|5|CANCELLED by 7|n1|e"
    programs(
        tmp_path / "bin",
        monkeypatch,
        squeue=f"cat <<END\n{rows}\nEND",
        sacct=f"cat <<END\n{older}\nEND",
    )
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
    rows = (
        "7_0|8|RUNNING|n1|None|a\n7_1|9|PREEMPTED|n2|None|a\n"
        "7_[2-3,5-9:2%2]|7|PENDING||JobArrayTaskLimit|a\n20_[0-1]|20|PENDING||PartitionNodeLimit|b"
    )
    programs(
        tmp_path / "bin",
        monkeypatch,
        squeue=f"cat <<END\n{rows}\nEND",
        sacct="cat <<END\n30_[0-4]|30|CANCELLED by 7|None assigned|c\n40_1|43|NODE_FAIL|n3|d\nEND",
        scancel=f'echo "$@" >{tmp_path}/cancelled',
    )
    queue = SlurmQueue(SlurmSchema())
    waiting = {"a.2": "", "a.3": "", "a.5": "", "a.7": "", "a.9": ""}
    ended = {"a.1": "9", "b.1": "", "c.4": "", "d.1": "43"}
    unknown = {"a.1": "another", "a.4": "", "a.6": "", "a.10": "", "c.5": "", "a": ""}
    assert queue.ends({"a.0": "8", **waiting}) == dict.fromkeys(["a.0", *waiting])
    assert queue.ends(ended) == {
        "a.1": JobEnd(Status.UNAVAILABLE, "7_1 was preempted"),
        "b.1": JobEnd(
            Status.UNAVAILABLE, "20_1 cannot start: Slurm's reason is PartitionNodeLimit", never=True
        ),
        "c.4": JobEnd(Status.UNAVAILABLE, "30_4 was cancelled"),
        "d.1": JobEnd(Status.UNAVAILABLE, "40_1 ended when a node of n3 failed"),
    }
    assert queue.ends(unknown) == {}
    queue.cancel(["a.0", "a.1", "a.7"])
    assert (tmp_path / "cancelled").read_text() == "7_0 7_7\n"


def command(executor, out):
    """Return how the command ends, and the last line that it prints as an error."""
    words = ["suite=interconnect_formula", "workloads=[gemma_12b]", "only=[baseline]", f"out={out}"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words, *executor], cwd=ROOT, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.splitlines()[-1]


def test_no_cluster_here_is_one_line_and_exit_status_2(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="needs the extra slurm")
    programs(tmp_path / "bin", monkeypatch)
    status, error = command(["executor=slurm"], tmp_path / "out")
    assert status == 2
    assert error == "harness: executor=slurm: no sbatch here; run this on a login node of the cluster"
    assert not list((tmp_path / "out" / JOBS).glob("*/"))


def test_without_submitit_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ExecutorError, match="submitit is not installed; the extra `slurm` has it"):
        sweep(tmp_path, [group(cell("nothing"))], SlurmQueue(SlurmSchema()))
    assert not (tmp_path / JOBS).exists()
