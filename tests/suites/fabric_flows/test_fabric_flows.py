"""The fabric_flows suite: variants see the same placements, and no routing beats the bound."""

import pytest

from harness.instruments.network.routing import RoutingPolicy
from harness.records import Unavailable, WrongResult
from suites.fabric import fabric_flows, optimizations

ZONE = {
    "collective": "allreduce", "buffer_B": 1 << 20, "ranks": 32, "ranks_per_node": 8, "racks": 8,
    "nics_per_rack": 16, "spines": 16, "nic_B_per_s": 5e10, "uplink_B_per_s": 5e10,
    "placement": "fragmented", "failed_uplinks": 0, "placements": 10, "source": "",
}  # fmt: skip
POLICIES = {
    "baseline": (RoutingPolicy(), {}),
    "qp_scaling": (RoutingPolicy(queue_pairs=4), {"queue_pairs": 4}),
    "e_ecmp": (RoutingPolicy(hash_ports=True, queue_pairs=4), {"queue_pairs": 4}),
    "path_pinning": (RoutingPolicy("pinned"), {}),
    "central_te": (RoutingPolicy("central"), {}),
}


def variant(name):
    subject = fabric_flows.build(ZONE, 1)
    return subject if name == "baseline" else getattr(optimizations, name)(subject, **POLICIES[name][1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ranks": 20}, "20 ranks are not a multiple of ranks_per_node=8"),
        ({"ranks": 136}, "a job of 17 hosts: the fabric has 16"),
        ({"spines": 1, "failed_uplinks": 1}, "failed links cut rack"),
    ],
)
def test_a_fabric_that_cannot_be_is_unavailable_in_one_line(change, said):
    with pytest.raises(Unavailable, match=said) as error:
        fabric_flows.build({**ZONE, **change}, 1)
    assert "\n" not in str(error.value)


def samples(name):
    """Return the samples of twelve collectives, without the cost of simulating them, which varies."""
    session = fabric_flows.prepare(variant(name))
    fabric_flows.check(session)
    list(fabric_flows.read_once(session))
    return [
        {(one.metric, one.method): one.value for one in readings if one.metric != "simulation_time"}
        for readings in (list(fabric_flows.sample(session)) for _ in range(12))
    ]


@pytest.mark.parametrize("name", POLICIES)
def test_each_variant_is_its_policy_bus_bandwidth_by_definition_and_none_beats_the_bound(name):
    assert variant(name).policy == POLICIES[name][0]
    for round_ in samples(name):
        by_hand = ZONE["buffer_B"] * 2 * 31 / 32 / round_["time", ""]
        assert round_["bus_bandwidth", ""] == pytest.approx(by_hand)
        assert 0 < round_["of_bound", ""] <= 1 + 1e-12
        assert round_["load_max_over_mean", ""] >= 1


def test_rounds_are_placements_and_all_variants_have_the_same():
    """Splitting gains nothing where the hash does not see it."""
    one = samples("baseline")
    assert one == samples("baseline") == samples("qp_scaling")
    assert len({round_["time", ""] for round_ in one}) > 1
    assert samples("central_te") != one


def test_a_result_that_beats_the_bound_is_wrong(monkeypatch):
    session = fabric_flows.prepare(variant("baseline"))
    right = fabric_flows.run_simulated(session)
    monkeypatch.setattr(fabric_flows, "run_simulated", lambda _: right._replace(time_s=right.bound_s / 2))
    with pytest.raises(WrongResult, match="no routing takes less than"):
        fabric_flows.check(session)
