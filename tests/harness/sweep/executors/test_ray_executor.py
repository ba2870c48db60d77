"""Sweeps on Ray, started by the sweep or with two nodes on the loopback address; one record per cell."""

import os
import random
import secrets
import signal
import sys

import psutil
import pytest
from toy.jobs_sweep import Sweep, assert_truthful, begun, ends, gated, lines, sweep, wait_for
from toy.sweep import cell, environ, group

from harness.instruments.distributed.ray_session import LOOPBACK, ONE_MACHINE, TOKEN
from harness.sweep.executors import ExecutorError
from harness.sweep.executors.job_folder import JOBS
from harness.sweep.executors.ray import RayQueue
from harness.sweep.store import read_records

pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = pytest.mark.usefixtures("toy_suites")
ALONE = {"exclusive": True}
NODE = {"num_cpus": 2, "node_ip_address": LOOPBACK, "object_store_memory": 100 << 20}


@pytest.fixture
def cluster(monkeypatch):
    """Yield a Ray of two nodes."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv(TOKEN, os.environ.get(TOKEN) or secrets.token_hex(32))
    monkeypatch.setenv("PYTHONPATH", environ()["PYTHONPATH"])
    monkeypatch.setenv(ONE_MACHINE, "0")  # listen on the loopback address alone
    monkeypatch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)
    two = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    two.second = two.add_node(**NODE)
    yield two
    two.shutdown()


def test_cells_on_a_ray_of_this_machine_end_as_without_it(tmp_path):
    acts = {"nothing": "ok", "raise_error": "crashed", "kill_itself": "crashed", "be_wrong": "wrong_result"}
    acts["unavailable_here"] = "unavailable"
    cells = [cell(act) for act in acts]
    one = Sweep("ray", tmp_path, [group(*cells[:3]), group(*cells[3:])], {})
    assert one.end()[0] == 0, one.log.read_text()
    assert {name: status for name, (status, _) in ends(tmp_path).items()} == acts
    assert not list((tmp_path / "out" / JOBS).glob("*/"))


WORKER_DIED, NODE_LOST = "its job ended when its Ray worker died", "its job ended when its Ray node was lost"
NOT_KNOWN = "its job is not known to ray any more"  # of a job that died while no submitter followed it


def test_whatever_is_killed_each_cell_has_one_truthful_record(cluster, tmp_path):
    """A worker, a node and the submitter, in random order; the cells that were running are tried again."""
    order = random.SystemRandom().sample(["worker", "node", "submitter"], 3)
    print(order)
    cells = gated(tmp_path, 4)
    groups, settings = [group(one) for one in cells], {"address": cluster.address, **ALONE}
    one = Sweep("ray", tmp_path, groups, settings)
    one.wait_for(lambda: len(begun(tmp_path)) == 2)
    running = lines(tmp_path)
    raylet = cluster.second.all_processes["raylet"][0].process
    on_second = {
        name for name, pid in running if raylet.pid in {one.pid for one in psutil.Process(pid).parents()}
    }
    assert len(on_second) == 1
    by_worker = {name: psutil.Process(pid).ppid() for name, pid in running if name not in on_second}
    (on_first,) = by_worker.values()
    for victim in order:
        if victim == "worker":
            os.kill(on_first, signal.SIGKILL)
        elif victim == "node":
            cluster.remove_node(cluster.second, allow_graceful=False)
        else:
            one.kill(signal.SIGKILL)
            one = Sweep("ray", tmp_path, groups, settings)
    one.wait_for(lambda: len(lines(tmp_path)) >= 3)  # on the node that is left
    (tmp_path / "gate").touch()
    assert one.end()[0] == 0, one.log.read_text()
    assert_truthful(tmp_path, cells)
    for record in read_records(tmp_path / "out"):
        if record.status != "ok":
            of_worker = record.cell.workload in by_worker
            # Whatever else was lost was on the node, of which Ray may miss its worker first.
            assert record.reason in {WORKER_DIED, NOT_KNOWN} | (set() if of_worker else {NODE_LOST}), order
    assert Sweep("ray", tmp_path, groups, settings).end()[0] == 0
    assert {record.status for record in read_records(tmp_path / "out")} == {"ok"}
    assert all(begun(tmp_path)[name] >= 2 for name, _ in running)
    assert sorted(name for name, _ in lines(tmp_path, "end")) == sorted(one.workload for one in cells)


def test_a_ray_of_this_machine_ends_with_the_submitter_and_the_next_runs_the_rest(tmp_path):
    cells = gated(tmp_path, 3)
    groups = [group(one) for one in cells]
    one = Sweep("ray", tmp_path, groups, {})
    one.wait_for(lambda: len(begun(tmp_path)) == 2)
    killed = dict(lines(tmp_path))
    one.kill(signal.SIGKILL)
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in killed.values()))
    (tmp_path / "gate").touch()
    again = Sweep("ray", tmp_path, groups, {})
    assert again.end()[0] == 0, again.log.read_text()
    assert_truthful(tmp_path, cells)
    assert {record.status for record in read_records(tmp_path / "out")} == {"ok"}
    assert all(begun(tmp_path)[name] >= 2 for name in killed)
    assert len(lines(tmp_path, "end")) == 3


def test_what_ray_cannot_give_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(ExecutorError, match=r"executor=ray: no Ray cluster at 127.0.0.1:1: .*"):
        sweep("ray", tmp_path / "a", [group(cell("nothing"))], {"address": "127.0.0.1:1"})
    with monkeypatch.context() as patch:
        patch.setattr("harness.sweep.executors.ray._nodes", lambda: {"n": {"CPU": 8.0}})
        patch.setattr(RayQueue, "open", lambda queue: None)
        with pytest.raises(ExecutorError, match="ray: no node of the cluster has 1 CPUs and 1 GPUs"):
            sweep("ray", tmp_path / "c", [group(cell("nothing"))], {"gpus_per_job": 1})
    assert (tmp_path / "c" / JOBS).is_dir()
    assert not list((tmp_path / "c" / JOBS).glob("*/"))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExecutorError, match="executor=ray: ray is not installed; the extra `ray` has it"):
        sweep("ray", tmp_path / "b", [group(cell("nothing"))], {})
