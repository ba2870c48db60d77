"""The fabric suite: packets take the routes that the kernel reports, as many bytes as calculated."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from moved import needs_namespaces, quick_networks
from variants import applied, tiny_run

from harness.instruments.distributed.rank_pool import RankFailed
from harness.instruments.network.routing import flows_of
from harness.records import Unavailable, WrongResult
from suites.fabric import on_rank
from suites.fabric import suite as fabric
from suites.fabric.workload import Workload

RUN = tiny_run("fabric")
TINY = RUN.workloads["allreduce_2_racks"]
VARIANTS = {one.name: one for one in RUN.variants if one.settings.get("queue_pairs", 4) == 4}
"""Each policy once: variants of one policy differ in the number of queue pairs."""


def subject_of(name, workload=TINY):
    return applied("fabric", VARIANTS[name], fabric.build(workload, 1))


def test_ranks_and_a_buffer_that_do_not_divide_are_unavailable():
    """test_fabric_flows.py has other fabrics that cannot be."""
    for change, reason in (({"ranks": 3}, "ranks=3: expected 4"), ({"buffer_B": 592}, "buffer_B=592 does")):
        with pytest.raises(Unavailable, match=reason):
            fabric.prepare(subject_of("e_ecmp.4_pairs", {**TINY, **change}))


RANKS = 3
BARRIER = threading.Barrier(RANKS)


class Wire:
    """One rank's end of a group of ranks that are threads; `log` notes what is posted, taken and sent."""

    def __init__(self, name, place, mail, log):
        self.name, self.place, self.mail, self.log = name, place, mail, log
        self.rank, self.size = lambda: place, lambda: RANKS

    def barrier(self):
        self.log.append(("barrier", self.place))
        return BARRIER

    def recv(self, given, other, tag):
        def take():
            given[0].copy_(self.mail[self.name, other, self.place, tag].get(timeout=100))
            self.log.append(("taken", self.place))

        self.log.append(("posted", self.place))
        return SimpleNamespace(wait=take)

    def send(self, given, other, tag):
        self.log.append(("sent", self.place, other, tag, self.name))
        self.mail[self.name, self.place, other, tag].put(given[0].clone())
        return SimpleNamespace(wait=lambda: None)


def logged(kind, pairs, split, in_flight):
    """Run a collective over threads in place of ranks, which compares its result; return the log."""
    log, mail, failed = [], defaultdict(SimpleQueue), []

    def run(place):
        try:
            memory = {"groups": [Wire(name, place, mail, log) for name in range(pairs)], "place": place}
            on_rank.collective(memory, kind, 4 * RANKS * 64, pairs, split, in_flight)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    return log


@pytest.mark.parametrize(("pairs", "split"), [(1, False), (2, False), (4, True)])
@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_ring_takes_queue_pairs_in_turn_and_admits_so_many_messages(pairs, split, in_flight):
    log = logged("allreduce", pairs, split, in_flight)
    count = on_rank.messages(pairs, split) * 2 * (RANKS - 1)
    over = [tuple(range(pairs))] if split else [(name,) for name in range(pairs)]
    for place in range(RANKS):
        sent = [one[2:] for one in log if one[:2] == ("sent", place)]
        before = (place - 1) % RANKS
        assert sent == [(before, tag, name) for tag in range(count) for name in over[tag % len(over)]]
        posted = taken = most = 0
        for one in log:
            posted += one == ("posted", place)
            taken += one == ("taken", place)
            most = max(most, posted - taken)
        assert most == min(in_flight, count) * (pairs if split else 1)


@pytest.fixture(scope="module")
def alltoall():
    """Yield a workload whose network and ranks all tests share; test_every_optimization.py tries `TINY`."""
    needs_namespaces()
    workload = {**TINY, "collective": "alltoall"}
    with pytest.MonkeyPatch.context() as patch:
        quick_networks(patch)
        session = fabric.prepare(subject_of("baseline", workload))
    yield workload
    fabric.close(session)
    assert fabric.shared_fabric.cache_info().currsize == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_packets_go_where_the_kernel_says(name, alltoall):
    """An uplink's bytes are those of the flows that the kernel routes over it, and little else."""
    session = fabric.prepare(subject_of(name, alltoall))
    hashed = "none" if name in ("central_te", "path_pinning") else "addresses"
    try:
        conditions = fabric.conditions(session)
        assert conditions["hash"] == hashed + " and ports" * name.startswith("e_ecmp")
        assert conditions["queue_pairs"] == ("4" if name.endswith("4_pairs") else "1")
        for session.placement in range(3):
            fabric.check(session)
            run, emulated, simulated = fabric.run_collective(session)
            assert simulated.load_B.sum() > 0
            # Heads of frames, and the other direction's acknowledgements.
            assert np.all(emulated.load_B <= 1.1 * simulated.load_B + 0.1 * simulated.load_B.max())
            assert run.time_s > 0.9 * simulated.load_B.max() / alltoall["uplink_B_per_s"]
    finally:
        fabric.close(session)


def test_packets_that_go_elsewhere_are_caught():
    routed_B = np.full((2, 2, 2), 1000.0)
    for direction, where in ((0, "to"), (1, "from")):
        counted_B = 1.05 * routed_B
        fabric.validate_routes(counted_B, routed_B)
        counted_B[direction, 1, 0] -= 100
        with pytest.raises(WrongResult, match=f"^the uplink {where} spine0 of leaf1 carried 950 B of"):
            fabric.validate_routes(counted_B, routed_B)


@pytest.mark.slow
def test_a_rank_that_is_killed_in_mid_collective_ends_the_collective_and_leaves_nothing(alltoall):
    """After it the network of this file's tests has no ranks."""
    subject = subject_of("baseline", {**TINY, "buffer_B": 1 << 23})
    net, nic_HG = fabric.shared_fabric(Workload(**alltoall)), fabric.nics_of(subject, 0)
    flows = flows_of("allreduce", nic_HG, 1 << 23, 1)
    threading.Timer(1.0, os.kill, (net.pool.pids[2], signal.SIGKILL)).start()
    begin_s = time.monotonic()
    with pytest.raises(RankFailed, match="rank 2"):
        net.run_collective(subject.workload, subject.policy, flows, list(map(int, nic_HG[:, 0])))
    assert time.monotonic() - begin_s < fabric.TIMEOUT_S
    assert len(net.pool) == 0


def test_wrong_numbers_are_caught():
    rows = (torch.arange(4) * 4 + 1).float()[:, None].repeat(1, 3)
    for kind, right in (("allreduce", torch.full((6,), 10.0)), ("alltoall", rows)):
        on_rank.validate_result(kind, right, 1, 4)
        right.view(-1)[2] += 1
        with pytest.raises(WrongResult, match=f"{kind}: the rank in place 1 has other numbers"):
            on_rank.validate_result(kind, right, 1, 4)
