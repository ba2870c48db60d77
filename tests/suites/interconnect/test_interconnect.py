"""The interconnect suite on two nodes of namespaces: steps behind a link, their traces, and wrong ones.

test_every_optimization.py checks each variant against plain PyTorch.
"""

from contextlib import ExitStack

import pytest
from moved import needs_namespaces, quick_networks
from variants import tiny_run

from harness.records import Note, Origin, Reading, WrongResult
from suites.interconnect import suite as interconnect
from suites.interconnect.emulated_cluster import paper_run
from suites.interconnect.training_cluster import STRATEGIES

TINY = tiny_run("interconnect").workloads["ddp"]


@pytest.fixture(scope="module")
def cluster():
    """Two nodes for all tests: their ranks and links serve every strategy."""
    needs_namespaces()
    with pytest.MonkeyPatch.context() as patch:
        quick_networks(patch)
        first = interconnect.prepare(baseline("ddp"))
        patch.setattr(interconnect, "shared_ranks", lambda *given: first.cluster)
        yield first.cluster
    interconnect.close(first)
    assert interconnect.shared_ranks.cache_info().currsize == 0


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


def activations_B(subject):
    """Return the bytes of one fp32 value per token, layer and hidden unit, and of the logits."""
    workload = subject.workload
    tokens = workload.micro_batch_size * workload.seq_len
    return 4 * tokens * (workload.num_hidden_layers * workload.hidden_size + workload.vocab_size)


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
    states_B = 16 * subject.workload.shape.parameters  # parameters, gradients and two moments in fp32
    ranks_of_states = 1 if strategy == "ddp" else 2
    peak_B = found["peak_memory", ""].value
    assert states_B / ranks_of_states < peak_B < 3 * states_B + 20 * activations_B(subject)


def test_a_step_whose_collectives_cannot_be_timed_by_themselves_has_no_prediction(opened):
    session = opened(interconnect.apply_techniques(baseline("ddp"), ["fsdp1"]))
    found = [*interconnect.read_once(session), *interconnect.sample(session)]
    notes = [one.text for one in found if isinstance(one, Note)]
    assert any("cannot be timed by itself" in text for text in notes)
    times = {one.method for one in found if isinstance(one, Reading) and one.metric == "time"}
    assert times == {"packets"}


def test_links_are_scaled_by_the_bytes_of_the_workloads_own_strategy(cluster, opened):
    sent_B = {one: cluster.link_B(opened(baseline(one)).key, 11) for one in ("ddp", "fsdp2")}
    assert abs(sent_B["fsdp2"] / sent_B["ddp"] - 1) > 0.15
    assert cluster.run.link_B == pytest.approx(sent_B["ddp"], rel=0.1)  # the fixture's cluster is of DDP


def test_communication_stands_to_computation_as_in_the_papers_run(cluster):
    there = paper_run()
    here_s = cluster.run.link_B / cluster.rate(1.25e9) / cluster.run.compute_s
    assert here_s == pytest.approx(there.link_B / 1.25e9 / there.compute_s)
    assert there.link_B / 1.25e9 == pytest.approx(29.3, abs=0.05)


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


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])  # what else deepspeed sends is not counted by hand
def test_bytes_on_the_link_are_those_of_the_collectives(cluster, opened, strategy):
    """Of two ranks each sends half of what it gathers or reduces to shares, and all of what it reduces."""
    subject = baseline(strategy)
    sent_B = cluster.link_B(opened(subject).key, 4)
    events = cluster.trace(subject.step)
    due_B = sum(
        4 * event[3] * (1.0 if event[2] == "all_reduce" else 0.5) for event in events if event[0] == "begin"
    )
    assert due_B <= sent_B <= 1.5 * due_B + 20_000  # heads of frames, acknowledgements, the barrier


def test_a_step_of_fsdp2_sends_half_as_much_again_as_one_of_ddp(cluster, opened):
    """Three halves of the parameters, against two; with gloo's own reduce-scatter it would be four."""
    large = {"hidden_size": 64, "intermediate_size": 96}  # so that bytes outweigh heads and the barrier
    sent_B = {
        strategy: cluster.link_B(opened(baseline(strategy, **large)).key, 4) for strategy in ("ddp", "fsdp2")
    }
    assert 1.4 <= sent_B["fsdp2"] / sent_B["ddp"] <= 1.6


def test_bf16_products_are_counted_over_all_batches_between_two_syncs():
    """By hand: four ranks with two sequences of 64 tokens each, four micro-batches per update."""
    in_fp32 = interconnect.build({**TINY, "ranks_per_node": 2}, 1)
    assert interconnect.bf16_FLOP(in_fp32) == 0
    techniques = ["mixed_precision", {"gradient_accumulation": {"steps": 4, "split": False}}]
    subject = interconnect.apply_techniques(in_fp32, techniques)
    expected = 6 * subject.workload.shape.parameters * 4 * 4 * 2 * 64
    assert interconnect.bf16_FLOP(subject) == expected


def test_a_variant_that_does_not_learn_is_caught(cluster):
    with pytest.raises(WrongResult, match=r"it does not learn: loss 3\..* first, 3\..* after 8 updates"):
        interconnect.final_loss(baseline("ddp", learning_rate=0.0), cluster)


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
