"""Sweeps on a real Slurm of two nodes on this machine: each cell ends in one truthful record."""

import os
import signal
import sys
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, why_not
from toy.jobs_sweep import Sweep, begun, ends, gated, sweep, wait_for
from toy.sweep import cell, group

from harness.config_schema import SlurmSchema
from harness.executors import ExecutorError
from harness.executors.job_folder import JOBS
from harness.executors.slurm import parameters
from harness.store import read_records

pytest.importorskip("submitit", reason="needs the extra slurm")
pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a cluster"),
    pytest.mark.usefixtures("toy_suites"),
]
SHARED = {"cpus_per_task": 1}  # two jobs fit on one node
ALONE = {"exclusive": True}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    with SlurmCluster(folder) as one:
        yield one
    wait_for(lambda: not [pid for pid in os.listdir("/proc") if pid.isdigit() and mentions(pid, str(folder))])


def mentions(pid, text):
    try:
        return text.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@pytest.fixture(autouse=True)
def joined(cluster, monkeypatch):
    """Let Slurm's programs find the cluster; at the end the queue is empty."""
    monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])
    yield
    left = cluster.queue()
    cluster.call("scancel", "--user=root")
    wait_for(lambda: not cluster.queue())
    assert left == {}


def folders_of_jobs(folder):
    return list((folder / "out" / JOBS).glob("*/"))


def test_cells_over_two_nodes_end_as_on_this_machine(tmp_path):
    acts = ("nothing", "raise_error", "kill_itself", "be_wrong", "unavailable_here")
    cells = [cell(act) for act in acts]
    meeting = gated(tmp_path, 2)
    (tmp_path / "gate").touch()
    groups = [group(*cells[:3]), group(*cells[3:]), *map(group, meeting)]
    records = sweep("slurm", tmp_path / "out", groups, SHARED)
    statuses = {record.cell.workload: record.status for record in records.values()}
    assert statuses == {
        "nothing": "ok",
        "raise_error": "crashed",
        "kill_itself": "crashed",
        "be_wrong": "wrong_result",
        "unavailable_here": "unavailable",
        "gated0": "ok",
        "gated1": "ok",
    }
    assert "killed by SIGKILL; last printed:\nlast words" in records[cells[2].id].reason
    assert set(begun(tmp_path).values()) == {1}
    assert not folders_of_jobs(tmp_path)


def test_a_record_has_the_environment_of_its_own_node(tmp_path):
    one = cell("nothing")
    record = sweep("slurm", tmp_path / "out", [group(one)], {})[one.id]
    kept = (tmp_path / "out" / f"environment-{record.environment}.json").read_text()
    assert '"cpu": ""' not in kept
    assert '"ranks": "slurm: 1 x 1"' in kept


def test_exclusive_jobs_do_not_share_a_node_and_those_of_timed_cells_are(tmp_path):
    one = Sweep("slurm", tmp_path, [group(one) for one in gated(tmp_path, 2)], {**SHARED, **ALONE})
    one.wait_for(lambda: len(begun(tmp_path)) == 2)
    (tmp_path / "gate").touch()
    assert one.end() == (0, "")
    assert {record.conditions["node"] for record in read_records(tmp_path / "out")} == {"n1", "n2"}
    assert parameters(SlurmSchema(), "job", timed=True)["exclusive"]
    assert "exclusive" not in parameters(SlurmSchema(), "job", timed=False)
    assert "exclusive" not in parameters(SlurmSchema(exclusive=False), "job", timed=True)


def test_a_cancelled_job_and_a_lost_node_are_named_and_tried_again(cluster, tmp_path):
    groups = [group(one) for one in gated(tmp_path, 3)]
    one = Sweep("slurm", tmp_path, groups, ALONE)
    one.wait_for(lambda: len(begun(tmp_path)) == 2)
    jobs = cluster.call("squeue", "--noheader", "--states=R", "--format=%N %A").splitlines()
    on = dict(line.split() for line in jobs)
    cluster.kill_node("n2")
    cluster.call("scancel", on["n1"])
    one.wait_for(lambda: len(begun(tmp_path)) == 3)  # on the node that is left
    (tmp_path / "gate").touch()
    assert one.end()[0] == 0
    cluster.start_node("n2")
    first = ends(tmp_path)
    assert sorted(status for status, _ in first.values()) == ["ok", "unavailable", "unavailable"]
    assert {reason for status, reason in first.values() if status != "ok"} == {
        f"its job {on['n1']} was cancelled",
        f"its job {on['n2']} ended when a node of n2 failed",
    }
    wait_for(lambda: cluster.node_states() == ["idle", "idle"])
    assert Sweep("slurm", tmp_path, groups, ALONE).end()[0] == 0
    assert {record.status for record in read_records(tmp_path / "out")} == {"ok"}
    assert sorted(begun(tmp_path).values()) == [1, 2, 2]


def test_jobs_go_on_without_the_submitter_and_the_next_one_collects_them(cluster, tmp_path):
    groups = [group(one) for one in gated(tmp_path, 4)]
    one = Sweep("slurm", tmp_path, groups, SHARED, workers=3)
    one.wait_for(lambda: len(begun(tmp_path)) == 3)
    one.kill(signal.SIGKILL)
    again = Sweep("slurm", tmp_path, groups, SHARED, workers=3)
    assert len(cluster.queue()) == 3
    (tmp_path / "gate").touch()
    assert again.end()[0] == 0
    assert {status for status, _ in ends(tmp_path).values()} == {"ok"}
    assert set(begun(tmp_path).values()) == {1}
    assert not folders_of_jobs(tmp_path)


def test_killed_at_any_instant_a_sweep_is_finished_by_the_next_start(tmp_path):
    """The submitter is killed after so many cells, not after so many seconds."""
    (tmp_path / "gate").touch()
    cells = gated(tmp_path, 12)
    groups = [group(*cells[i : i + 2]) for i in range(0, 12, 2)]
    for kills in range(1, 7):
        one = Sweep("slurm", tmp_path, groups, SHARED)
        wait_for(lambda kills=kills, one=one: len(begun(tmp_path)) >= 2 * kills or one.process.poll() == 0)
        one.kill(signal.SIGKILL)
    assert Sweep("slurm", tmp_path, groups, SHARED).end()[0] == 0
    assert {record.status for record in read_records(tmp_path / "out")} == {"ok"}
    assert len(read_records(tmp_path / "out")) == 12
    assert set(begun(tmp_path).values()) == {1}
    assert not folders_of_jobs(tmp_path)


def test_ctrl_c_cancels_the_jobs(cluster, tmp_path):
    one = Sweep("slurm", tmp_path, [group(one) for one in gated(tmp_path, 3)], SHARED)
    one.wait_for(lambda: len(begun(tmp_path)) == 2)
    assert one.kill(signal.SIGINT) == 130
    assert cluster.queue() == {}
    assert not folders_of_jobs(tmp_path)


def test_another_limit_does_not_take_over_the_jobs(tmp_path):
    groups = [group(one) for one in gated(tmp_path, 1)]
    one = Sweep("slurm", tmp_path, groups, {})
    one.wait_for(lambda: begun(tmp_path))
    one.kill(signal.SIGKILL)
    again = Sweep("slurm", tmp_path, groups, {}, limits=[300.0, None])
    again.wait_for(lambda: begun(tmp_path)["gated0"] == 2)
    (tmp_path / "gate").touch()
    assert again.end()[0] == 0
    (record,) = read_records(tmp_path / "out")
    assert (record.status, record.limits.timeout_s) == ("ok", 300.0)


def test_the_time_limit_of_the_queue_is_a_status(tmp_path, cluster):
    first, second = gated(tmp_path, 2)
    one = Sweep("slurm", tmp_path, [group(first, second)], {"time_limit_min": 1}, limits=[900.0, None])
    one.wait_for(lambda: begun(tmp_path))
    (job,) = cluster.queue().values()
    cluster.call("scontrol", "update", f"JobId={job}", "TimeLimit=0:00:01")
    assert one.end()[0] == 0
    reason = f"its job {job} exceeded Slurm's time limit (executor.time_limit_min)"
    assert ends(tmp_path) == {"gated0": ("timed_out", reason), "gated1": ("unavailable", reason)}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"partition": "none"}, "executor=slurm: .*[Ii]nvalid partition"),
        ({"constraint": "absent"}, "executor=slurm: .*[Ii]nvalid feature"),
        ({"nodes": 3}, "executor=slurm: its job .* cannot start: Slurm's reason is PartitionNodeLimit"),
        ({"time_limit_min": 90}, "executor=slurm: .*PartitionTimeLimit"),
        ({"python": "no_such_program"}, "executor=slurm: its job .* no_such_program"),
        ({"setup": ["mkdir /run/gone", "exit 3"]}, "executor=slurm: its job .* before it began"),
    ],
)
def test_what_the_cluster_refuses_is_one_line_and_leaves_no_job(cluster, tmp_path, settings, said):
    with pytest.raises(ExecutorError, match=said) as raised:
        sweep("slurm", tmp_path / "out", [group(cell("nothing")), group(cell("hang"))], settings)
    assert "\n" not in str(raised.value)
    assert cluster.queue() == {}
    assert not folders_of_jobs(tmp_path)


def test_a_folder_that_nodes_do_not_see_is_named(cluster, tmp_path):
    """Another file system lies over the folder in the job."""
    out = tmp_path / "out"
    hidden = f'mount -t tmpfs none {out} && {sys.executable} "$@"'
    settings = {"python": f"unshare --mount bash -c '{hidden}' bash"}
    said = r"before it began: \S+ does not see /.*; expected nodes that share"
    with pytest.raises(ExecutorError, match=said):
        sweep("slurm", out, [group(cell("nothing"))], settings)
    assert cluster.queue() == {}


def test_a_cluster_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    conf = (Path(os.environ["SLURM_CONF"])).read_text()
    lines = ["SlurmctldPort=1" if line.startswith("SlurmctldPort=") else line for line in conf.splitlines()]
    (tmp_path / "slurm.conf").write_text("\n".join([*lines, "MessageTimeout=2", ""]))
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
        with pytest.raises(ExecutorError, match="executor=slurm: the cluster cannot be reached: "):
            sweep("slurm", tmp_path / "out", [group(cell("nothing"))], {})
