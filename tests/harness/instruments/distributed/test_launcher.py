"""Ranks that a launcher started next to rank 0: they answer as a pool's own, and end with it."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
from launched import SMALL, SRUN, TORCHRUN
from marked import marked, running, wait_for, wait_until_none
from places import PYTHONPATH, ROOT

from harness.instruments.distributed import remote_ranks
from harness.instruments.distributed.rank_pool import RankFailed, RankPool, RankTimeout
from harness.instruments.distributed.rank_worker import STORE
from harness.instruments.distributed.remote_ranks import (
    REMOTE,
    RUN,
    Launch,
    LaunchError,
    attended,
    launch,
    places,
)
from harness.records import Origin, Status, measurement
from harness.sweep.store import read_records

pytestmark = pytest.mark.usefixtures("ranks_by_command")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, Launch(3, 16, 3, 8, "node1", 29500, False, "none/1")),
        (SRUN, Launch(9, 16, 1, 8, "node1", 29500, True, "17.0")),
        ({}, None),
        (TORCHRUN | {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, None),  # a batch script: srun has started nothing
    ],
)
def test_a_process_knows_by_whom_it_was_launched(environ, expected):
    found = launch(environ)
    assert found == expected
    assert found is None or found.nodes == 2


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({**SRUN, "MASTER_ADDR": None}, "MASTER_ADDR is missing: .* process 9 of 16.* export MASTER_ADDR"),
        (TORCHRUN | {"WORLD_SIZE": "15"}, "15 processes are spread unevenly over the nodes: 8"),
    ],
)
def test_a_launch_that_cannot_meet_is_refused(environ, said):
    with pytest.raises(LaunchError, match=said):
        launch({name: value for name, value in environ.items() if value is not None})


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextmanager
def served(world, monkeypatch):
    """Start as many servers as a launcher would next to rank 0; yield their environment."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    here = Launch(0, world, 0, world, "127.0.0.1", free_port(), True, "a/0")
    environment = {**os.environ, **here.environment, "PYTHONPATH": PYTHONPATH}
    servers = [
        subprocess.Popen([sys.executable, "-u", "-m", REMOTE, "serve", str(n), str(n)], env=environment)
        for n in range(1, world)
    ]
    try:
        with attended(here):
            yield here
        assert [server.wait(timeout=60) for server in servers] == [0] * (world - 1)
    finally:
        for server in servers:
            server.kill()


def pool_of(here):
    return RankPool(places(here, {"PYTHONPATH": PYTHONPATH}), here.address, timeout_s=100.0)


def test_a_port_in_use_is_named_by_the_keeper_and_who_waits_for_it(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as used:
        here = Launch(0, 2, 0, 1, "127.0.0.1", used.getsockname()[1], True, "a/0")
        for name, value in here.environment.items():
            monkeypatch.setenv(name, value)
        remote_ranks.keep(host=True, servers=1)
    said = capsys.readouterr().out
    monkeypatch.setattr(remote_ranks, "_role", lambda *_: [sys.executable, "-S", "-c", f"print({said!r})"])
    with pytest.raises(LaunchError, match=r"cannot meet at 127.0.0.1:\d+: .*in use"), attended(here):
        pass


@pytest.fixture
def mark(monkeypatch):
    mark = marked(monkeypatch)
    yield mark
    wait_until_none(mark)


def ranks(mark):
    relays = {process.pid for process in running(mark, REMOTE)}
    return [
        one for one in running(mark, "harness.instruments.distributed.rank_worker") if one.pid not in relays
    ]


@pytest.fixture(scope="module")
def started():
    """A server next to rank 0 for the tests below, whose pools come one after another."""
    with pytest.MonkeyPatch.context() as patch:
        mark = marked(patch)
        with served(2, patch) as here:
            yield here, mark
        wait_until_none(mark)


@pytest.fixture
def pool(started):
    here, mark = started
    with pool_of(here) as pool:
        assert pool.call("on_ranks:number") == [0, 1]
        assert len(ranks(mark)) == 2
        yield pool
    wait_for(lambda: not ranks(mark))


def test_one_that_hangs_is_reported_within_the_limit(pool):
    with pytest.raises(RankTimeout) as caught:
        pool.call("on_ranks:misbehave", 3.0, ways=["", "hang"])
    said = str(caught.value)
    assert said.startswith("rank 0 and rank 1 gave no answer to misbehave within 3 s")
    assert "in _hang" in said.partition("\nrank 1; its stack:")[2]


def test_a_relay_that_is_killed_takes_its_rank_along(started, pool):
    os.kill(pool.pids[1], signal.SIGKILL)
    wait_for(lambda: len(ranks(started[1])) == 1)
    with pytest.raises(RankFailed):
        pool.call("on_ranks:number")


def test_servers_end_with_whoever_started_them(mark):
    code = (
        "import os, signal\n"
        "from harness.instruments.distributed.remote_ranks import attended, launch\n"
        "with attended(launch()):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    port = str(free_port())
    said = SRUN | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "MASTER_ADDR": "127.0.0.1"}
    environment = {**os.environ, **said, "MASTER_PORT": port, "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(
        [sys.executable, "-m", REMOTE, "serve", "1", "1"],
        env={**environment, STORE: f"127.0.0.1:{port}", RUN: "17.0"},
    )
    first = subprocess.run([sys.executable, "-c", code], env=environment | {"SLURM_PROCID": "0"}, check=False)
    assert first.returncode == -signal.SIGKILL
    assert server.wait(timeout=60) == 0
    wait_until_none(mark)


def torchrun(node, port, words):
    where = ["--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1"]
    meeting = ["--master-addr=127.0.0.1", f"--master-port={port}"]
    command = [sys.executable, "-m", "torch.distributed.run", *where, *meeting, "-m", "harness", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_torchrun_starts_a_sweep_over_the_machines_own_network(tmp_path, mark):
    port = free_port()
    words = ["suite=interconnect", "workloads=[ddp]", "only=[link.20g]", "repeats=1", f"out={tmp_path}"]
    words += [f"suite.workloads.ddp.{name}={value}" for name, value in SMALL.items()]
    words += ["suite.sampling.rounds=2", "suite.sampling.budget_s=0.02"]
    nodes = [torchrun(node, port, words) for node in (1, 0)]
    said = [node.communicate(timeout=240)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    records = {(one.cell.workload, one.cell.optimization): one for one in read_records(tmp_path)}
    found, other = records["ddp", "baseline"], records["ddp", "link.20g"]
    assert (found.status, other.status) == (Status.OK, Status.UNAVAILABLE)
    assert measurement(found, "time", "packets").origin == Origin.MEASURED
    assert measurement(found, "time", "model") is None
    assert found.conditions["network"] == "loopback"
    assert "no other link can be tried" in other.reason
    wait_until_none(mark)
