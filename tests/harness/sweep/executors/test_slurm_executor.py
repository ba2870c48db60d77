"""Sweeps on a real Slurm of two nodes on this machine: each cell ends in one truthful record."""

import random
import secrets
import signal
import subprocess
import sys

import pytest
from launched import SMALL
from slurm_cluster import SlurmCluster, processes, why_not
from toy.jobs_sweep import Sweep, assert_truthful, begun, ends, gated, sweep, wait_for
from toy.sweep import cell, group

from harness.config.code_fingerprint import ROOT
from harness.records import Origin, measurement
from harness.sweep.executors import ExecutorError
from harness.sweep.executors.job_folder import JOBS
from harness.sweep.store import read_records

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
    wait_for(lambda: not processes(**one.environ))


@pytest.fixture(autouse=True)
def joined(cluster, monkeypatch):
    """Let the programs of Slurm find the cluster; at the end no job is left, once ended ones are out."""
    monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])
    yield
    try:
        wait_for(lambda: not cluster.queue())
    finally:
        cluster.call("scancel", "--user=root")


def folders_of_jobs(folder):
    return list((folder / "out" / JOBS).glob("*/"))


def test_cells_over_two_nodes_end_as_on_this_machine(tmp_path):
    acts = {"nothing": "ok", "raise_error": "crashed", "kill_itself": "crashed", "be_wrong": "wrong_result"}
    acts["unavailable_here"] = "unavailable"
    cells = [cell(act) for act in acts]
    meeting = gated(tmp_path, 2)
    (tmp_path / "gate").touch()
    groups = [group(*cells[:3]), group(*cells[3:]), *map(group, meeting)]
    records = sweep("slurm", tmp_path / "out", groups, SHARED)
    statuses = {record.cell.workload: record.status for record in records.values()}
    assert statuses == {**acts, "gated0": "ok", "gated1": "ok"}
    killed = records[cells[2].id]
    assert "killed by SIGKILL; last printed:\nlast words" in killed.reason
    kept = (tmp_path / "out" / f"environment-{killed.environment}.json").read_text()  # of its own node
    assert '"cpu": ""' not in kept
    assert '"ranks": "slurm: 1 x 1, cpus_per_task=1"' in kept
    assert set(begun(tmp_path).values()) == {1}
    assert not folders_of_jobs(tmp_path)


def jobs_by_node(cluster):
    """Return the ids of the jobs that run, by node."""
    rows = cluster.call("squeue", "--noheader", "--states=R", "--format=%N %i").splitlines()
    return dict(row.split() for row in rows)


def test_a_time_limit_and_a_lost_node_are_statuses_and_tried_again(cluster, tmp_path):
    """Slurm looks for time limits every 30 s, and for lost nodes about as often."""
    cells = gated(tmp_path, 4)
    groups = [group(*cells[:2]), group(*cells[2:])]
    one = Sweep("slurm", tmp_path, groups, ALONE, limits=[900.0, None])
    one.wait_for(lambda: len(begun(tmp_path)) == 2)
    on = jobs_by_node(cluster)
    cluster.kill_node("n2")
    cluster.call("scontrol", "update", f"JobId={on['n1']}", "EndTime=now+1")
    assert one.end()[0] == 0
    cluster.start_node("n2")
    limit = f"its job {on['n1']} exceeded Slurm's time limit (executor.time_limit_min)"
    lost = f"its job {on['n2']} ended when a node of n2 failed"
    running = [("timed_out", limit), ("unavailable", lost)]
    assert sorted(ends(tmp_path).values()) == sorted(
        [*running, ("unavailable", limit), ("unavailable", lost)]
    )
    wait_for(lambda: cluster.node_states() == ["idle", "idle"])
    (tmp_path / "gate").touch()
    assert Sweep("slurm", tmp_path, groups, ALONE, limits=[900.0, None]).end()[0] == 0
    assert {record.status for record in read_records(tmp_path / "out")} == {"ok"}
    assert sorted(begun(tmp_path).values()) == [1, 1, 2, 2]


def test_a_node_that_a_cell_on_two_nodes_loses_is_a_status_and_tried_again(cluster, tmp_path):
    """The rank that is left loses the connection; a missing heartbeat or Slurm shows that a node is lost."""
    groups, two_nodes = [group(*gated(tmp_path, 2, suite="ranked"))], {"nodes": 2, **ALONE}
    limits = [900.0, None]
    one = Sweep("slurm", tmp_path, groups, two_nodes, limits)
    one.wait_for(lambda: begun(tmp_path))
    (job,) = cluster.queue()
    cluster.kill_node("n2")
    assert one.end()[0] == 0
    cluster.start_node("n2")
    found = ends(tmp_path)
    assert {status for status, _ in found.values()} == {"unavailable"}
    silent = "its job lost rank 1 in {}: its node sends no heartbeat"
    by_slurm = f"its job {job} ended when a node of n[1-2] failed"
    assert found["gated0"][1] in (silent.format("sum_until"), by_slurm)
    assert found["gated1"][1] in (silent.format("join"), by_slurm)
    assert begun(tmp_path) == {"gated0": 1}
    wait_for(lambda: cluster.node_states() == ["idle", "idle"])
    (tmp_path / "gate").touch()
    assert Sweep("slurm", tmp_path, groups, two_nodes, limits).end()[0] == 0
    assert {record.status for record in read_records(tmp_path / "out")} == {"ok"}
    assert begun(tmp_path) == {"gated0": 2, "gated1": 1}


def test_whatever_is_killed_each_cell_has_one_truthful_record(cluster, tmp_path):
    """A node, a job and the submitter, in random order at random instants."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    (tmp_path / "gate").touch()
    cells = gated(tmp_path, 24, takes_s=0.3)
    groups = [group(*cells[i : i + 3]) for i in range(0, 24, 3)]
    one = Sweep("slurm", tmp_path, groups, SHARED, workers=3)
    for number, victim in enumerate(draw.sample(["node", "job", "submitter"], 3)):
        several = 4 * number + draw.randint(1, 4)
        wait_for(lambda several=several, one=one: len(begun(tmp_path)) >= several or one.process.poll() == 0)
        kill(cluster, one, victim, draw)
        if victim == "submitter":
            one = Sweep("slurm", tmp_path, groups, SHARED, workers=3)
    assert one.end()[0] == 0, one.log.read_text()
    assert_truthful(tmp_path, cells)
    wait_for(lambda: cluster.node_states() == ["idle", "idle"])
    assert Sweep("slurm", tmp_path, groups, SHARED).end()[0] == 0
    assert {record.status for record in read_records(tmp_path / "out")} == {"ok"}
    assert not folders_of_jobs(tmp_path)


def kill(cluster, one, victim, draw):
    """Kill a node (which whoever watches it reports as down), a running job or the submitter."""
    if victim == "submitter":
        one.kill(signal.SIGKILL)
    elif victim == "job":
        if running := jobs_by_node(cluster):
            cluster.call("scancel", draw.choice(list(running.values())))
    else:
        node = draw.choice(["n1", "n2"])
        cluster.kill_node(node)
        cluster.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=killed")
        cluster.start_node(node)


def test_srun_starts_the_ranks_of_a_cell_on_two_nodes(cluster, tmp_path):
    """Two slurmd share this machine, so that the network between their ranks is the loopback one."""
    fields = {**SMALL, "nodes": 2, "ranks_per_node": 1}
    words = ["suite=interconnect", "workloads=[ddp]", "only=[link.20g]", "repeats=1", f"out={tmp_path}"]
    words += [f"suite.workloads.ddp.{name}={value}" for name, value in fields.items()]
    words += ["suite.sampling.rounds=2", "suite.sampling.budget_s=0.02", "executor=slurm", "executor.nodes=2"]
    done = subprocess.run([sys.executable, "-m", "harness", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    records = {one.cell.optimization: one for one in read_records(tmp_path)}
    found = records["baseline"]
    assert (found.status, found.reason) == ("ok", "")
    stated = {"nodes": "2", "ranks_per_node": "1", "backend": "gloo", "network": "loopback"}
    assert found.conditions.items() >= stated.items()
    time = measurement(found, "time", "packets")
    assert time.origin == Origin.MEASURED
    assert all(sample > 0 for sample in time.samples)
    assert records["link.20g"].status == "unavailable"
    assert "no other link can be tried" in records["link.20g"].reason
    kept = (tmp_path / f"environment-{found.environment}.json").read_text()
    assert '"ranks": "slurm: 2 x 1"' in kept
    assert not list((tmp_path / JOBS).glob("*/"))


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
    settings = {**SHARED, "array_parallelism": 2}
    one = Sweep("slurm", tmp_path, [group(one) for one in gated(tmp_path, 3)], settings, workers=3)
    one.wait_for(lambda: len(begun(tmp_path)) == 2)
    assert one.kill(signal.SIGINT) == 130
    assert cluster.queue() == []
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


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"partition": "none"}, "executor=slurm: .*[Ii]nvalid partition"),
        ({"nodes": 3}, "executor=slurm: its job .* cannot start: Slurm's reason is PartitionNodeLimit"),
        ({"python": "no_such_program"}, "executor=slurm: its job .* no_such_program"),
        ({"setup": ["mkdir /run/gone", "exit 3"]}, "executor=slurm: its job .* before it began"),
    ],
)
def test_what_the_cluster_refuses_is_one_line_and_leaves_no_job(cluster, tmp_path, settings, said):
    with pytest.raises(ExecutorError, match=said) as raised:
        sweep("slurm", tmp_path / "out", [group(cell("nothing")), group(cell("hang"))], settings)
    assert "\n" not in str(raised.value)
    assert cluster.queue() == []
    assert not folders_of_jobs(tmp_path)
