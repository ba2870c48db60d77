"""What the interconnect_formula suite calculates, compared with sums done by hand."""

from dataclasses import replace

import pytest
from variants import applied

from harness.config import load
from harness.records import Origin, Unavailable, WrongResult
from suites import interconnect_formula

RUN = load(["suite=interconnect_formula"])[0]
VARIANTS = {variant.name: variant for variant in RUN.variants}


def subject_of(workload, name):
    fields = RUN.workloads[workload] if isinstance(workload, str) else workload
    return applied("interconnect_formula", VARIANTS[name], interconnect_formula.build(fields, 1))


def values_of(workload, name):
    """Return values by metric and method; `workload`: a name, or its fields."""
    subject = subject_of(workload, name)
    interconnect_formula.check(subject)
    readings = list(interconnect_formula.sample(subject))
    assert {one.origin for one in readings} == {Origin.CALCULATED}
    return {(one.metric, one.method): one.value for one in readings if one.method != "band"}


def test_twelve_billion_over_ethernet():
    """Half of 24.4 GB comes from the other node, three times per step."""
    found = values_of("gemma_12b", "baseline")
    assert found["time", "at best"] == pytest.approx(3 * 12.2e9 / 1.25e9)
    assert values_of("gemma_12b", "link.3200g")["speedup", "at best"] == pytest.approx(29.28 / 4.4)


def test_latency_counts_three_times_a_layer():
    workload = {**RUN.workloads["gemma_12b"], "latency_s": 1e-3}
    found = values_of(workload, "baseline")
    assert found["time", "at best"] == pytest.approx(3 * 12.2e9 / 1.25e9 + 3 * 48 * 1e-3)


def test_four_batches_to_an_update_reduce_once():
    found = values_of("gemma_12b", "gradient_accumulation")
    assert found["time", "at best"] == pytest.approx(12.2e9 * (1 + 1 + 1 / 4) / 1.25e9)
    assert found["speedup", "at best"] == pytest.approx(3 / 2.25)


def test_of_shards_within_nodes_gradients_alone_cross():
    """Each node's sum of 24.4 GB is halved, exchanged and gathered: 12.2 GB each way, twice."""
    found = values_of("gemma_12b", "hybrid_shard")
    assert found["time", "at best"] == pytest.approx(2 * 12.2e9 / 1.25e9)


def test_shards_that_a_node_cannot_hold_are_refused():
    with pytest.raises(Unavailable, match="140 GB of states for each of a node's 8 GPUs, which have 80 GB"):
        values_of("dense_70b", "hybrid_shard")


@pytest.mark.parametrize("name", ["baseline", "hybrid_shard"])
def test_a_step_that_sends_too_little_is_caught(monkeypatch, name):
    """Here one that reduces nothing."""
    subject = subject_of("gemma_12b", name)
    interconnect_formula.check(subject)
    silent = replace(subject.exchange, element_B=0.0, gradient_B=0.0)
    monkeypatch.setattr(type(subject), "exchange", silent)
    with pytest.raises(WrongResult, match=r"^a step takes .* s; no algorithm takes less than .* s$"):
        interconnect_formula.check(subject)


@pytest.mark.parametrize("workload", RUN.workloads)
def test_the_best_case_is_no_slower_than_the_worst(workload):
    found = values_of(workload, "baseline")
    assert 0 < found["time", "at best"] <= found["time", "at worst"]
    assert found["enough_rate", "at best"] <= found["enough_rate", "at worst"]


def test_cells_of_a_workload_share_a_process():
    from harness.plan import plan

    groups = plan(RUN, "env", lambda variant: "code")
    assert [{cell.workload for cell in group.cells} for group in groups] == [{one} for one in RUN.workloads]
