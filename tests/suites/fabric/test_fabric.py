"""The fabric suite: packets take the routes that the kernel reports, as many bytes as calculated."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import namedtuple

import numpy as np
import pytest
import torch
from marked import marked, wait_until_none
from moved import needs_namespaces, quick_networks
from variants import applied, tiny_run

from harness.instruments.distributed.rank_pool import RankFailed
from harness.instruments.network import emulated_network
from harness.instruments.network.routing import RoutingPolicy, flows_of
from harness.records import Unavailable, WrongResult
from suites.fabric import on_rank
from suites.fabric import suite as fabric
from suites.fabric.suite import Subject
from suites.fabric.workload import Workload

RUN = tiny_run("fabric")
TINY = RUN.workloads["allreduce_2_racks"]
VARIANTS = {one.name: one for one in RUN.variants if one.settings.get("queue_pairs", 4) == 4}
"""Each policy once: variants of one policy differ in the number of queue pairs."""


def subject_of(name, workload=TINY):
    return applied("fabric", VARIANTS[name], fabric.build(workload, 1))


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("baseline", RoutingPolicy()),
        ("qp_scaling.4_pairs", RoutingPolicy(queue_pairs=4)),
        ("e_ecmp.4_pairs", RoutingPolicy(hash_ports=True, queue_pairs=4)),
        ("e_ecmp.split_4_pairs", RoutingPolicy(hash_ports=True, queue_pairs=4, split=True)),
        ("path_pinning", RoutingPolicy("pinned")),
        ("central_te", RoutingPolicy("central")),
    ],
)
def test_a_variant_is_its_policy(name, policy):
    assert subject_of(name).policy == policy


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ranks": 3}, "ranks=3: expected 4, one for each host"),
        ({"ranks": 1}, "no flows: a collective on 1 host does not touch the network"),
        ({"ranks": 5}, "a job of 5 hosts: the fabric has 4"),
        ({"nic_B_per_s": 0.0}, "NIC rate 0.0 B/s"),
        ({"uplink_B_per_s": float("inf")}, "uplink rate inf B/s"),
    ],
)
def test_a_fabric_that_cannot_be_is_unavailable_in_one_line(change, reason):
    with pytest.raises(Unavailable, match=reason) as error:
        fabric.build({**TINY, **change}, 1)
    assert "\n" not in str(error.value)


class Logged:
    """A group of three ranks that only notes what it is asked to do."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def rank(self):
        return 1

    def size(self):
        return 3

    def wait(self):
        return True

    def barrier(self):
        self.log.append((self.name, "barrier"))
        return self

    def recv(self, given, other, tag):
        given[0].copy_(on_rank.payload(other, 3, 48, "alltoall").view(3, -1)[1, :1])
        self.log.append((self.name, "recv"))
        return self

    def send(self, given, other, tag):
        self.log.append((self.name, "send"))
        return self


def test_alltoall_sends_once_all_its_receives_stand():
    """A receive's notice travels on the connection that data goes by, and would wait behind it."""
    log = []
    groups = [Logged(name, log) for name in "ab"]
    memory = {"groups": groups, "place": 1}
    assert on_rank.collective(memory, "alltoall", 4 * 48, pairs=2, split=False, in_flight=8) > 0
    steps = [[*[(name, "recv")] * 16, (name, "barrier")] for name in "ab"]
    assert log == [*steps[0], *steps[1], *[("a", "send"), ("a", "send"), ("b", "send"), ("b", "send")] * 8]


class Wire:
    """One rank's end of a group of ranks that are threads; `log` notes what is posted, taken and sent.

    As over gloo, a send arrives only where its receive is posted.
    """

    def __init__(self, name, place, wires, log):
        self.name, self.place, self.wires, self.log = name, place, wires, log
        self.changed, self.posted, self.arrived = threading.Condition(), {}, {}
        wires[name, place] = self

    def rank(self):
        return self.place

    def size(self):
        return RANKS

    def barrier(self):
        return BARRIER

    def recv(self, given, other, tag):
        self.log.append(("posted", self.place))
        with self.changed:
            self.posted[other, tag] = given[0]
            self.changed.notify_all()
        return Waited(lambda: self.taken(other, tag))

    def taken(self, other, tag):
        with self.changed:
            assert self.changed.wait_for(lambda: (other, tag) in self.arrived, timeout=100)
        self.log.append(("taken", self.place))

    def send(self, given, other, tag):
        self.log.append(("sent", self.place, other, tag, self.name))
        end = self.wires[self.name, other]

        def deliver():
            with end.changed:
                assert end.changed.wait_for(lambda: (self.place, tag) in end.posted, timeout=100)
                end.posted[self.place, tag].copy_(given[0])
                end.arrived[self.place, tag] = True
                end.changed.notify_all()

        thread = threading.Thread(target=deliver, daemon=True)
        thread.start()
        return Waited(thread.join)


class Waited:
    def __init__(self, wait):
        self.wait = wait


RANKS = 3
BARRIER = threading.Barrier(RANKS)


@pytest.mark.parametrize(("pairs", "split"), [(1, False), (2, False), (4, True)])
@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_ring_takes_queue_pairs_in_turn_and_admits_so_many_messages(pairs, split, in_flight):
    """Over threads in place of ranks; `collective` compares the sums with the closed formula."""
    log, wires, failed = [], {}, []
    names = range(pairs)
    memories = [
        {"groups": [Wire(name, place, wires, log) for name in names], "place": place}
        for place in range(RANKS)
    ]

    def run(memory):
        try:
            on_rank.collective(memory, "allreduce", 4 * RANKS * 64, pairs, split, in_flight)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(memory,)) for memory in memories]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    count = on_rank.messages(pairs, split) * 2 * (RANKS - 1)
    for place in range(RANKS):
        sent = [one[2:] for one in log if one[:2] == ("sent", place)]
        before = (place - 1) % RANKS
        over = [(name,) for name in names] if not split else [tuple(names)]
        assert sent == [(before, tag, name) for tag in range(count) for name in over[tag % len(over)]]
        posted = taken = most = 0
        for one in log:
            posted += one == ("posted", place)
            taken += one == ("taken", place)
            most = max(most, posted - taken)
        assert most == min(in_flight, count) * (pairs if split else 1)


def test_a_message_that_does_not_split_evenly_is_unavailable():
    subject = subject_of("e_ecmp.4_pairs", {**TINY, "buffer_B": 4 * 4 * 4 * 9 + 16})
    with pytest.raises(
        Unavailable,
        match=r"^buffer_B=592 does not split into numbers of 4 B for 4 ranks, in 16 parts each over 4 queue",
    ):
        fabric.prepare(subject)


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
    try:
        for session.placement in range(3):
            fabric.check(session)
            run, emulated, simulated = fabric.run_collective(session)
            assert simulated.load_B.sum() > 0
            # Heads of frames, and the other direction's acknowledgements.
            assert np.all(emulated.load_B <= 1.1 * simulated.load_B + 0.1 * simulated.load_B.max())
            assert run.time_s > 0.9 * simulated.load_B.max() / alltoall["uplink_B_per_s"]
    finally:
        fabric.close(session)


@pytest.mark.parametrize(("direction", "where"), [(0, "to"), (1, "from")])
def test_packets_that_go_elsewhere_are_caught(direction, where):
    routed_B = np.full((2, 2, 2), 1000.0)
    counted_B = 1.05 * routed_B
    fabric.validate_routes(counted_B, routed_B)
    counted_B[direction, 1, 0] -= 100
    with pytest.raises(
        WrongResult, match=f"^the uplink {where} spine0 of leaf1 carried 950 B of the 1000 B that are routed"
    ):
        fabric.validate_routes(counted_B, routed_B)


@pytest.mark.slow
def test_links_that_carry_something_else_are_unavailable_and_leave_nothing(monkeypatch):
    needs_namespaces()
    mark = marked(monkeypatch)
    monkeypatch.setattr(emulated_network, "RATE_TOLERANCE", -1)
    monkeypatch.setattr(emulated_network, "PROBE_S", (0.1,))
    given = subject_of("baseline")
    with pytest.raises(Unavailable, match=r"^link h0-leaf0 is shaped to 20 Mbit/s but carries"):
        fabric.EmulatedFabric(given.workload, given.workload.clos())
    wait_until_none(mark)


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


def test_what_the_hypervisor_took_is_a_part_of_the_processors_time(monkeypatch):
    names = "user nice system idle iowait irq softirq steal guest guest_nice"
    Times = namedtuple("Times", names.split())
    before = Times(100.0, 1, 50, 200, 2, 3, 4, 10, 90, 0)
    seconds = iter([before, before._replace(user=103.0, idle=203.0, steal=12.0, guest=93.0)])
    monkeypatch.setattr(fabric.psutil, "cpu_times", lambda: next(seconds))
    assert fabric.stolen_since(before) == 0
    assert fabric.stolen_since(before) == pytest.approx(2 / (3 + 3 + 2))


@pytest.mark.parametrize("kind", on_rank.KINDS)
def test_wrong_numbers_are_caught(kind):
    right = (
        torch.full((6,), 10.0)
        if kind == "allreduce"
        else (torch.arange(4) * 4 + 1).float()[:, None].repeat(1, 3)
    )
    on_rank.validate_result(kind, right, 1, 4)
    right.view(-1)[2] += 1
    with pytest.raises(WrongResult, match=f"{kind}: the rank in place 1 has other numbers"):
        on_rank.validate_result(kind, right, 1, 4)


def test_conditions_name_the_policy():
    policy = RoutingPolicy(hash_ports=True, queue_pairs=16)
    subject = Subject(fabric.build(TINY, 1).workload, 1, policy=policy)
    found = fabric.conditions(fabric.Session(subject, None))
    assert found["hash"] == "addresses and ports"
    assert (found["nodes"], found["ranks"], found["queue_pairs"]) == ("4", "4", "16")
    assert found["messages"] == "in turn"
