"""The interconnect suite on two nodes of namespaces: steps behind a link, their traces, and wrong ones.

test_every_optimization.py checks each variant against plain PyTorch.
"""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moved import needs_namespaces, quick_networks
from variants import tiny_run

from harness.instruments.distributed.remote_ranks import Launch
from harness.records import Note, Origin, Reading, Unavailable, WrongResult
from suites.interconnect import suite as interconnect
from suites.interconnect.emulated_cluster import (
    Collective,
    alone_s,
    collectives,
    computed_s,
    merged,
    paper_run,
    service,
    step_seconds,
)
from suites.interconnect.training_cluster import STRATEGIES, network_of
from suites.training import shared_trainers

TINY = tiny_run("interconnect").workloads["ddp"]


@pytest.fixture(scope="module")
def cluster():
    """Two nodes for all tests: their ranks and links serve every strategy."""
    needs_namespaces()
    with pytest.MonkeyPatch.context() as patch:
        quick_networks(patch)
        first = interconnect.prepare(baseline("ddp"))
        patch.setattr(interconnect, "shared", lambda *given: first.cluster)
        yield first.cluster
    interconnect.close(first)
    assert not shared_trainers.SHARED


def baseline(strategy, **changes):
    return interconnect.build({**TINY, "strategy": strategy, **changes}, 1)


@pytest.fixture
def opened(cluster):
    """Start a subject, closed after the test."""
    with ExitStack() as stack:

        def start(subject):
            session = interconnect.prepare(subject)
            stack.callback(interconnect.close, session)
            return session

        yield start


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_is_timed_behind_its_link(cluster, opened, strategy):
    subject = baseline(strategy)
    session = opened(subject)
    readings = [*interconnect.read_once(session), *interconnect.sample(session)]
    found = {(one.metric, one.method): one for one in readings if isinstance(one, Reading)}
    rate = found["link_rate", "scaled"].value
    time = found["time", "packets"]
    assert time.origin == Origin.EMULATED
    # What crossed the link cannot have crossed it any faster.
    assert time.value >= 0.5 * found["link_bytes", ""].value / rate
    # On a busy machine what computes between a collective's begin and its wait may hide all of it.
    assert found["time", "model"].value >= found["time", "without network"].value
    assert cluster.rate(2 * subject.link_B_per_s) == pytest.approx(2 * rate)
    assert interconnect.conditions(session)["precision"] == "fp32"
    workload = subject.workload
    tokens = workload.micro_batch_size * workload.seq_len
    # One fp32 value per token, layer and hidden unit, and the logits.
    activations_B = 4 * tokens * (workload.num_hidden_layers * workload.hidden_size + workload.vocab_size)
    states_B = 16 * workload.shape.parameters  # parameters, gradients and two moments in fp32
    ranks_of_states = 1 if strategy == "ddp" else 2
    peak_B = found["peak_memory", ""].value
    assert states_B / ranks_of_states < peak_B < 3 * states_B + 20 * activations_B


def test_a_step_whose_collectives_cannot_be_timed_by_themselves_has_no_prediction(opened):
    session = opened(interconnect.apply_techniques(baseline("ddp"), ["fsdp1"]))
    found = [*interconnect.read_once(session), *interconnect.sample(session)]
    notes = [one.text for one in found if isinstance(one, Note)]
    assert any("cannot be timed by itself" in text for text in notes)
    times = {one.method for one in found if isinstance(one, Reading) and one.metric == "time"}
    assert times == {"packets"}


def test_links_are_scaled_by_the_bytes_of_the_workloads_own_strategy_as_in_the_papers_run(cluster, opened):
    sent_B = {one: cluster.link_B(opened(baseline(one)).key, 11) for one in ("ddp", "fsdp2")}
    assert abs(sent_B["fsdp2"] / sent_B["ddp"] - 1) > 0.15
    assert cluster.run.link_B == pytest.approx(sent_B["ddp"], rel=0.1)  # the fixture's cluster is of DDP
    there_s = paper_run().link_B / 1.25e9
    here_s = cluster.run.link_B / cluster.rate(1.25e9)
    assert here_s / cluster.run.compute_s == pytest.approx(there_s / paper_run().compute_s)
    assert there_s == pytest.approx(29.3, abs=0.05)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_trace_has_every_collective_and_every_parameter(cluster, strategy):
    subject = baseline(strategy)
    events = cluster.trace(subject.step)
    elements = {}
    for event in events:
        if event[0] == "begin":
            elements.setdefault(event[2], []).append(event[3])
    parameters, num_hidden_layers = subject.workload.shape.parameters, subject.workload.num_hidden_layers
    reduced = "all_reduce" if strategy == "ddp" else "reduce_scatter"
    assert parameters <= sum(elements[reduced]) <= 1.1 * parameters  # shards are padded
    if strategy == "fsdp2":  # each block forward and backward, the rest of the model once
        assert len(elements["all_gather"]) == 2 * num_hidden_layers + 1
        assert len(elements["reduce_scatter"]) == num_hidden_layers + 1
    if strategy == "ddp":
        assert set(elements) == {"all_reduce"}
    begun = [event[1] for event in events if event[0] == "begin"]
    waited = {event[1] for event in events if event[0] == "wait"}
    assert waited == set(begun)


def test_bytes_on_the_link_are_those_of_the_collectives(cluster, opened):
    """Each of two ranks sends all that it reduces, and half of what it gathers or reduces to shares.

    Of FSDP2 three halves of the parameters, of DDP two; by gloo's own reduce-scatter it would be four.
    """
    large = {"hidden_size": 64, "intermediate_size": 96}  # so that bytes outweigh heads and the barrier
    large_B = {}
    for strategy in ("ddp", "fsdp2"):  # what else deepspeed sends is not counted by hand
        subject = baseline(strategy)
        sent_B = cluster.link_B(opened(subject).key, 4)
        begun = [event for event in cluster.trace(subject.step) if event[0] == "begin"]
        due_B = sum(4 * event[3] * (1.0 if event[2] == "all_reduce" else 0.5) for event in begun)
        assert due_B <= sent_B <= 1.5 * due_B + 20_000  # heads of frames, acknowledgements, the barrier
        large_B[strategy] = cluster.link_B(opened(baseline(strategy, **large)).key, 4)
    assert 1.4 <= large_B["fsdp2"] / large_B["ddp"] <= 1.6


def test_bf16_products_are_counted_over_all_batches_between_two_syncs():
    """By hand: four ranks with two sequences of 64 tokens each, four micro-batches per update."""
    in_fp32 = interconnect.build({**TINY, "ranks_per_node": 2}, 1)
    assert interconnect.bf16_FLOP(in_fp32) == 0
    techniques = ["mixed_precision", {"gradient_accumulation": {"steps": 4, "split": False}}]
    subject = interconnect.apply_techniques(in_fp32, techniques)
    expected = 6 * subject.workload.shape.parameters * 4 * 4 * 2 * 64
    assert interconnect.bf16_FLOP(subject) == expected


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"times": 3.0, "apart": False}, r"gradient of \S+ is off by"),
        ({"times": 1.0, "apart": True}, "differ between ranks"),
    ],
)
def test_a_wrong_variant_is_caught(cluster, opened, settings, reason):
    cluster.pool.call("wrong_on_ranks:spoil", **settings)
    try:
        with pytest.raises(WrongResult, match=reason):
            interconnect.check(opened(baseline("ddp")))
    finally:
        cluster.pool.call("wrong_on_ranks:mend")


# On machines where a launcher started the ranks.

HERE = Launch(0, 4, 0, 2, "node1", 29500, False, "none/0")


def test_nodes_on_machines_of_their_own_have_a_network_and_ranks_dealt_round_are_refused():
    assert network_of(HERE, [("a", 0), ("a", 1), ("b", 0), ("b", 1)]) == "real"
    assert network_of(HERE, [("a", 0), ("a", 1), ("a", 0), ("a", 1)]) == "loopback"
    for ranks in (
        [("a", 0), ("b", 0), ("a", 1), ("b", 1)],
        [("a", 1), ("a", 0), ("b", 0), ("b", 1)],
    ):
        with pytest.raises(Unavailable, match="numbered node by node"):
            network_of(HERE, ranks)


# A traced update stepped through time: against sums and bounds had by hand.

SIZE = ("all_reduce", 8, "float32")


def blocking(stretches):
    """Return events in which each collective is waited for as soon as it has started."""
    events = []
    for number, stretch in enumerate(stretches):
        events += [["compute", stretch], ["begin", number, *SIZE], ["compute", 0.0], ["wait", number]]
    return events


def overlapping(stretches):
    """Return events in which all collectives are waited for at the end."""
    events = []
    for number, stretch in enumerate(stretches):
        events += [["compute", stretch], ["begin", number, *SIZE]]
    return [*events, *(["wait", number] for number in range(len(stretches)))]


def test_a_link_carries_one_collective_after_the_other():
    events = overlapping([1.0, 1.0])
    assert step_seconds(events, lambda _: 0.5) == 2.5
    assert step_seconds(events, lambda _: 3.0) == 7.0
    assert step_seconds([*events, ["compute", 2.0]], lambda _: 3.0) == 9.0
    assert step_seconds(blocking([1.0, 2.0]), lambda _: 3.0) == 9.0
    unawaited = [["compute", 1.0], ["begin", 0, *SIZE]]
    assert step_seconds(unawaited, lambda _: 2.0) == 3.0


decades = st.lists(st.floats(1e5, 1e9), min_size=1, max_size=5, unique=True)


@given(st.just(0.0) | st.floats(1e-6, 1e-2), st.floats(1e3, 1e7), decades, st.floats(1e4, 1e9))
def test_between_rates_a_service_lies_between_the_line_and_the_slower(latency_s, bytes_B, rates, asked):
    def law(rate):
        return latency_s + bytes_B / rate

    found = service({rate: [law(rate)] for rate in rates})
    for rate in rates:
        assert found.seconds(rate) == pytest.approx(law(rate))
    if min(rates) <= asked <= max(rates):
        slower, faster = max(r for r in rates if r <= asked), min(r for r in rates if r >= asked)
        assert law(faster) * (1 - 1e-9) <= found.seconds(asked) <= law(slower) * (1 + 1e-9)
    if latency_s == 0:  # bytes alone count
        assert found.seconds(min(asked, max(rates))) == pytest.approx(bytes_B / min(asked, max(rates)))
        assert found.seconds(2 * max(rates)) == pytest.approx(bytes_B / max(rates))


def test_traces_are_merged_by_the_median_of_the_slowest_rank():
    one, two = [blocking([t]) for t in (1.0, 2.0, 9.0)], [blocking([t]) for t in (3.0, 1.0, 1.0)]
    merged_ = merged([one, two])
    assert computed_s(merged_) == 2.0
    assert collectives(merged_) == [Collective(*SIZE)]
    with pytest.raises(ValueError, match="differ"):
        merged([one, [overlapping([1.0, 1.0])]])
    with pytest.raises(ValueError, match="of 8 elements cannot be timed by itself"):
        collectives([["begin", 0, "other", 8, "float32"], ["wait", 0]])


def test_a_collective_is_timed_from_when_the_last_rank_began_it_and_the_link_was_free():
    events = overlapping([1.0, 1.0])
    ranks = [[[1.0, 3.5], [2.0, 4.0]], [[1.5, 3.5], [2.5, 4.0]]]
    assert alone_s(events, ranks) == {Collective(*SIZE): [2.0, 0.5]}


def test_one_that_overtakes_another_leaves_it_the_rest():
    events = [["begin", 0, *SIZE], ["begin", 1, "all_gather", 4, "float32"], ["wait", 1], ["wait", 0]]
    found = alone_s(events, [[[0.0, 5.0], [1.0, 4.0]]])
    assert found == {Collective(*SIZE): [1.0], Collective("all_gather", 4, "float32"): [3.0]}
