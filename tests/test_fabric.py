"""The fabric suite: packets go where the kernel says, as many as foretold; variants see the same
placements."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections import namedtuple
from contextlib import closing
from importlib import import_module

import numpy as np
import pytest
import torch
from marked import marked, wait_until_none
from moved import needs_namespaces

from harness.instruments.distributed.rank_pool import RankFailed
from harness.instruments.network import emulated_network
from harness.records import Unavailable, WrongResult
from suites import fabric
from suites.fabric import emulated, on_rank
from suites.fabric.collectives import flows_of
from suites.fabric.subject import Plan, Subject

ZONE = {
    "collective": "allreduce",
    "buffer_B": 1 << 20,
    "ranks": 32,
    "ranks_per_node": 8,
    "racks": 8,
    "nics_per_rack": 16,
    "spines": 16,
    "nic_B_per_s": 5e10,
    "uplink_B_per_s": 5e10,
    "placement": "fragmented",
    "failed_uplinks": 0,
    "emulated": False,
    "placements": 10,
    "source": "",
}
SMALL = {
    **ZONE,
    "buffer_B": 1 << 19,
    "ranks": 4,
    "ranks_per_node": 1,
    "racks": 2,
    "nics_per_rack": 2,
    "spines": 2,
    "nic_B_per_s": 2.5e6,
    "uplink_B_per_s": 2.5e6,
    "placement": "shuffled",
    "emulated": True,
}
ARMS = {
    "baseline": Plan(),
    "baseline_again": Plan(),
    "qp_scaling": Plan(queue_pairs=4),
    "e_ecmp": Plan(ports=True, queue_pairs=4),
    "path_pinning": Plan("pinned"),
    "central_te": Plan("central"),
}
SETTINGS = {"qp_scaling": {"queue_pairs": 4}, "e_ecmp": {"queue_pairs": 4}}


def variant(name, workload=ZONE, seed=1):
    module = import_module(f"suites.fabric.{name}")
    assert module.unavailable(None) is None
    return module.apply(fabric.build(workload, seed), module.Settings(**SETTINGS.get(name, {})))


@pytest.mark.parametrize("name", ARMS)
def test_each_arm_is_its_plan(name):
    assert variant(name).plan == ARMS[name]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ranks": 20}, "20 ranks are not a multiple of ranks_per_node=8"),
        ({"ranks": 8}, "no flows: a collective on 1 host does not touch the network"),
        ({"ranks": 136}, "a job of 17 hosts: the fabric has 16"),
        ({"nics_per_rack": 12}, "12 NICs per rack are not a multiple of hosts with 8"),
        ({"nic_B_per_s": 0.0}, "NIC rate 0.0 B/s is not above 0 and finite"),
        ({"uplink_B_per_s": float("inf")}, "uplink rate inf B/s is not above 0 and finite"),
        ({"spines": 1, "failed_uplinks": 1}, "failed links cut rack"),
        ({"failed_uplinks": 5000}, "cannot fail"),
        ({"emulated": True}, "with packets, each host has one rank"),
        ({**SMALL, "ranks": 3}, "with packets, each of 4 hosts has one rank, not 3 ranks in all"),
        ({**SMALL, "failed_uplinks": 1}, "over links that are all up"),
    ],
)
def test_a_fabric_that_cannot_be_is_unavailable_in_one_line(change, said):
    with pytest.raises(Unavailable, match=said) as error:
        fabric.build({**ZONE, **change}, 1)
    assert "\n" not in str(error.value)


def told(subject):
    """What the collective took; not what simulating it took, which differs from run to run."""
    return {
        (one.metric, one.method): one.value
        for one in fabric.sample(subject)
        if one.metric != "simulation_time"
    }


def sampled(name, rounds, workload=ZONE):
    subject = variant(name, workload)
    fabric.check(subject)
    try:
        list(fabric.read_once(subject))
        return [told(subject) for _ in range(rounds)]
    finally:
        fabric.close(subject)


def test_rounds_are_placements_and_all_arms_have_the_same():
    one, other = sampled("baseline", 12), sampled("baseline_again", 12)
    assert one == other
    assert len({round_["time", ""] for round_ in one}) > 1
    assert sampled("central_te", 12) != one


@pytest.mark.parametrize("name", ARMS)
def test_bus_bandwidth_is_by_definition_and_no_arm_beats_the_bound(name):
    for round_ in sampled(name, 5):
        by_hand = ZONE["buffer_B"] * 2 * 31 / 32 / round_["time", ""]
        assert round_["bus_bandwidth", ""] == pytest.approx(by_hand)
        assert 0 < round_["of_bound", ""] <= 1 + 1e-12
        assert round_["load_max_over_mean", ""] >= 1


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
        given[0].copy_(on_rank.payload(other, 3, 6, "alltoall").view(3, -1)[1, :1])
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
    assert on_rank.collective(memory, "alltoall", buffer_B=24, pairs=2) > 0
    steps = [[(name, "recv"), (name, "recv"), (name, "barrier")] for name in "ab"]
    assert log == [*steps[0], *steps[1], ("a", "send"), ("a", "send"), ("b", "send"), ("b", "send")]


def test_a_message_that_does_not_split_evenly_is_unavailable():
    subject = variant("e_ecmp", {**SMALL, "buffer_B": 4 * 4 * 4 * 9 + 16})
    with pytest.raises(
        Unavailable, match="592 B do not split into numbers of 4 B for 4 ranks and 4 queue pairs each"
    ):
        fabric.check(subject)


def test_splitting_gains_nothing_where_the_hash_does_not_see_it():
    assert sampled("qp_scaling", 5) == sampled("baseline", 5)


@pytest.fixture(scope="module")
def any_rate():
    """Links may carry less than was asked: other tests take the processor, and ways hang on no rate."""
    needs_namespaces()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulated_network, "WHOLE_RATE", math.inf)
        patch.setattr(emulated_network, "LOOKS_S", (0.05,))
        yield


@pytest.fixture(scope="module", params=on_rank.KINDS)
def small(request, any_rate):
    """A workload whose network and ranks stand for all variants."""
    workload = {**SMALL, "collective": request.param}
    held = variant("baseline", workload)
    fabric.check(held)
    yield workload
    fabric.close(held)
    assert fabric.shared_fabric.cache_info().currsize == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ARMS)
def test_packets_go_where_the_kernel_says(name, small):
    """Bytes that each uplink carried, each way, are those of the flows that the kernel says go there."""
    collective, subject = small["collective"], variant(name, small)
    fabric.check(subject)
    try:
        net = subject.held["fabric"]
        for round_ in range(3):
            subject.held["round"] = round_
            _, nic_HG = fabric.placed(subject, round_)
            flows = flows_of(collective, nic_HG, SMALL["buffer_B"], subject.plan.queue_pairs)
            took = net.turn(subject.workload, subject.plan, flows, list(map(int, nic_HG[:, 0])))
            expected_B = np.zeros((2, 2, 2))
            for source, other, size_B, spine in zip(
                flows.source, flows.destination, flows.size_B, took.spines, strict=True
            ):
                if spine >= 0:
                    expected_B[0, source // 2, spine] += size_B
                    expected_B[1, other // 2, spine] += size_B
            assert expected_B.sum() > 0
            # Heads of frames, and the other way's acknowledgements.
            assert np.all(took.load_B >= expected_B)
            assert np.all(took.load_B <= 1.1 * expected_B + 0.1 * expected_B.max())
            least_s = expected_B.max() / SMALL["uplink_B_per_s"]
            assert took.time_s > 0.9 * least_s
    finally:
        fabric.close(subject)


@pytest.mark.slow
def test_links_that_carry_something_else_are_unavailable_and_leave_nothing(monkeypatch):
    needs_namespaces()
    mark = marked(monkeypatch)
    monkeypatch.setattr(emulated_network, "WHOLE_RATE", -1)
    monkeypatch.setattr(emulated_network, "LOOKS_S", (0.1,))
    given = variant("baseline", SMALL)
    with pytest.raises(Unavailable, match=r"^link h0-leaf0 is shaped to 20 Mbit/s but carries"):
        emulated.Fabric(given.workload, fabric.fabric_of(given.workload))
    wait_until_none(mark)


@pytest.mark.usefixtures("any_rate")
@pytest.mark.slow
def test_a_rank_that_is_killed_in_mid_collective_ends_the_turn_and_leaves_nothing():
    subject = variant("baseline", {**SMALL, "buffer_B": 1 << 23})
    with closing(emulated.Fabric(subject.workload, fabric.fabric_of(subject.workload))) as net:
        _, nic_HG = fabric.placed(subject, 0)
        flows = flows_of("allreduce", nic_HG, 1 << 23, 1)
        victim = net.pool.pids[2]
        threading.Timer(1.0, os.kill, (victim, signal.SIGKILL)).start()
        begin_s = time.monotonic()
        with pytest.raises(RankFailed, match="rank 2"):
            net.turn(subject.workload, subject.plan, flows, list(map(int, nic_HG[:, 0])))
        assert time.monotonic() - begin_s < emulated.TIMEOUT_S
        assert len(net.pool) == 0


def test_what_the_hypervisor_took_is_a_part_of_the_processors_time(monkeypatch):
    names = "user nice system idle iowait irq softirq steal guest guest_nice"
    Times = namedtuple("Times", names.split())
    before = Times(100.0, 1, 50, 200, 2, 3, 4, 10, 90, 0)
    seconds = iter([before, before._replace(user=103.0, idle=203.0, steal=12.0, guest=93.0)])
    monkeypatch.setattr(emulated.psutil, "cpu_times", lambda: next(seconds))
    assert emulated.stolen_since(before) == 0
    assert emulated.stolen_since(before) == pytest.approx(2 / (3 + 3 + 2))


@pytest.mark.parametrize("kind", on_rank.KINDS)
def test_wrong_numbers_are_caught(kind):
    right = (
        torch.full((6,), 10.0)
        if kind == "allreduce"
        else (torch.arange(4) * 4 + 1).float()[:, None].repeat(1, 3)
    )
    on_rank.refuse_wrong(kind, [right], 1, 4)
    right.view(-1)[2] += 1
    with pytest.raises(WrongResult, match=f"{kind}: the rank in place 1 has other numbers"):
        on_rank.refuse_wrong(kind, [right], 1, 4)


def test_a_subject_is_told_by_its_conditions():
    said = fabric.conditions(Subject(fabric.build(ZONE, 1).workload, 1, Plan(ports=True, queue_pairs=16)))
    assert said["hash"] == "addresses and ports"
    assert (said["nodes"], said["ranks"], said["queue_pairs"]) == ("4", "32", "16")
