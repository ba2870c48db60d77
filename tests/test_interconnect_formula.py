"""What the formula workloads say, against sums done by hand."""

from importlib import import_module

import pytest

from harness.config import load
from harness.records import Origin, Reading, Unavailable
from suites import interconnect

RUN = load(["suite=interconnect"])[0]
ARMS = {variant.name: variant for variant in RUN.variants}


def figures_of(workload, name):
    """By metric and method; `workload`: a name, or its fields."""
    variant = ARMS[name]
    module = import_module(f"suites.interconnect.{variant.module}")
    fields = RUN.workloads[workload] if isinstance(workload, str) else workload
    subject = module.apply(interconnect.build(fields, 1), module.Settings(**variant.settings))
    interconnect.check(subject, None)
    said = [one for one in interconnect.prepare(subject) if isinstance(one, Reading)]
    assert {one.origin for one in said} == {Origin.CALCULATED}
    assert not interconnect.timed(subject)
    return {(one.metric, one.method): one.value for one in said if one.method != "band"}


def test_twelve_billion_over_ethernet():
    """Half of 24.4 GB comes from the other node, three times a step."""
    found = figures_of("gemma_12b", "baseline")
    assert found["time", "at best"] == pytest.approx(3 * 12.2e9 / 1.25e9)
    assert figures_of("gemma_12b", "link.3200g")["speedup", "at best"] == pytest.approx(29.28 / 4.4)


def test_latency_counts_three_times_a_layer():
    workload = {**RUN.workloads["gemma_12b"], "latency_s": 1e-3}
    found = figures_of(workload, "baseline")
    assert found["time", "at best"] == pytest.approx(3 * 12.2e9 / 1.25e9 + 3 * 48 * 1e-3)


def test_four_batches_to_an_update_reduce_once():
    found = figures_of("gemma_12b", "gradient_accumulation")
    assert found["time", "at best"] == pytest.approx(12.2e9 * (1 + 1 + 1 / 4) / 1.25e9)
    assert found["speedup", "at best"] == pytest.approx(3 / 2.25)


def test_of_shards_within_nodes_gradients_alone_cross():
    """Each node's sum of 24.4 GB is halved, exchanged and gathered: 12.2 GB each way, twice."""
    found = figures_of("gemma_12b", "hybrid_shard")
    assert found["time", "at best"] == pytest.approx(2 * 12.2e9 / 1.25e9)


def test_shards_that_a_node_cannot_hold_are_refused():
    with pytest.raises(Unavailable, match="states of 140 GB for each of a node's 8 GPUs, which have 80 GB"):
        figures_of("dense_70b", "hybrid_shard")
    with pytest.raises(Unavailable, match="of FSDP, hybrid shards and accumulated batches alone"):
        figures_of("gemma_12b", "bf16_reduce")
