"""Every variant of the interconnect suite on a tiny model: right, timed behind its link, caught when
wrong."""

from importlib import import_module

import pytest

from harness.config import load
from harness.instruments.network.emulated_network import privileges
from harness.plan import is_planned
from harness.records import Origin, Reading, Unavailable, WrongResult
from suites import interconnect
from suites.interconnect import emulated_cluster
from suites.interconnect.scaling import paper_run

RUN = load(["suite=interconnect"])[0]
ARMS = {variant.name: variant for variant in RUN.variants}
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 32,
}
SMALL |= {"micro_batch_size": 2, "seq_len": 64, "loss_steps": 8, "link_B_per_s": 2e10}
TECHNIQUES = sorted(name for name in ARMS if not name.startswith(("link.", "baseline")))
SHARDED = {"baseline", "gradient_accumulation", "bf16_reduce", "overlap"}
RUNS = {
    "ddp": SHARDED | {"powersgd", "local_sgd"},
    "fsdp2": SHARDED,
    "fsdp2_two_a_node": SHARDED | {"hybrid_shard"},
    "zero3": {"baseline", "gradient_accumulation"},
}


@pytest.fixture(scope="module", autouse=True)
def _needs_namespaces():
    try:
        privileges()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", autouse=True)
def _calibrated_quickly():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulated_cluster, "REPEATS", 1)
        patch.setattr(emulated_cluster, "UPDATES", 3)
        patch.setattr(emulated_cluster, "CALIBRATION_B_PER_S", (2e10, 3.2e11))
        yield


@pytest.fixture(scope="module", params=RUNS)
def workload(request):
    given = {**RUN.workloads[request.param], **SMALL}
    stays = interconnect.prepare(interconnect.build(given, 1))  # so that all others find its ranks
    yield given
    interconnect.close(stays)
    assert interconnect.shared_ranks.cache_info().currsize == 0


def subject_of(workload, name):
    variant, subject = ARMS[name], interconnect.build(workload, 1)
    if variant.techniques:
        subject = interconnect.apply_techniques(subject, variant.techniques)
    if variant.module == "baseline" or variant.techniques:
        return subject
    module = import_module(f"suites.interconnect.{variant.module}")
    if not hasattr(module, "Settings"):
        return module.apply(subject)
    return module.apply(subject, module.Settings(**variant.settings))


def ranks_of(subject):
    return interconnect.shared_ranks(subject.workload, subject.seed)


def readings(said):
    return {(one.metric, one.method): one for one in said if isinstance(one, Reading)}


@pytest.mark.parametrize("name", ["baseline", *TECHNIQUES])
def test_a_variant_is_right_and_timed_behind_its_link(workload, name, request):
    where = workload["strategy"] + ("_two_a_node" if workload["ranks_per_node"] == 2 else "")
    if name not in RUNS[where]:
        if is_planned(RUN, ARMS[name], where, gpu=False):
            with pytest.raises(Unavailable):
                subject_of(workload, name)
        return
    subject = subject_of(workload, name)
    session = interconnect.prepare(subject)
    request.addfinalizer(lambda: interconnect.close(session))
    interconnect.check(session)
    told = readings(interconnect.read_once(session))
    sampled = readings(interconnect.sample(session))
    ranks = session.cluster
    rate = told["link_rate", "scaled"].value
    assert told["link_rate", "carried"].value == pytest.approx(rate, rel=0.05)
    time = sampled["time", "packets"]
    assert time.origin == Origin.EMULATED
    if subject.step.updates_between_syncs == 1:
        sent_B = told["link_bytes", ""].value  # what crossed the link cannot have crossed it any faster
        assert time.value >= 0.5 * sent_B / rate
    if name not in (
        "powersgd",
        "local_sgd",
        "hybrid_shard",
        "gradient_accumulation",
    ):  # no prediction
        # On a busy machine what computes between a collective's begin and its wait may hide all of it.
        assert sampled["time", "model"].value >= sampled["time", "without network"].value
    assert ranks.rate(2 * subject.link_B_per_s) == pytest.approx(2 * rate)
    assert 0 < told["loss", ""].value < 10


def test_communication_stands_to_computation_as_in_the_papers_run(workload):
    ranks = ranks_of(subject_of(workload, "baseline"))
    there = paper_run()
    here_s = ranks.run.link_B / ranks.rate(1.25e9) / ranks.run.compute_s
    assert here_s == pytest.approx(there.link_B / 1.25e9 / there.compute_s)
    assert there.link_B / 1.25e9 == pytest.approx(29.3, abs=0.05)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"times": 3.0, "apart": False}, "a gradient is off by"),
        ({"times": 1.0, "apart": True}, "differ between ranks"),
    ],
)
def test_a_wrong_variant_is_caught(settings, said):
    subject = subject_of({**RUN.workloads["ddp"], **SMALL}, "baseline")
    ranks_of(subject).pool.call("tests.wrong_on_ranks:spoil", **settings)
    session = interconnect.prepare(subject)
    try:
        with pytest.raises(WrongResult, match=said):
            interconnect.check(session)
    finally:
        interconnect.close(session)


def test_a_variant_that_does_not_learn_is_caught():
    subject = subject_of({**RUN.workloads["ddp"], **SMALL, "learning_rate": 0.0}, "local_sgd")
    session = interconnect.prepare(subject)
    try:
        with pytest.raises(WrongResult, match=r"it does not learn: loss 3\..* first, 3\..* after 8 updates"):
            list(interconnect.read_once(session))
    finally:
        interconnect.close(session)


def test_a_trace_has_every_collective_and_every_parameter(workload):
    subject = subject_of(workload, "baseline")
    ranks = ranks_of(subject)
    events = ranks.trace(subject.step)
    elements = {}
    for event in events:
        if event[0] == "begin":
            elements.setdefault(event[2], []).append(event[3])
    parameters, num_hidden_layers = subject.workload.shape.parameters, subject.workload.num_hidden_layers
    strategy = subject.workload.strategy
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


def test_bytes_on_the_link_are_those_of_the_collectives(workload):
    """gloo gathers by sending every other rank its share, and reduces to shares by reducing to all."""
    subject = subject_of(workload, "baseline")
    if subject.workload.ranks_per_node > 1 or subject.workload.strategy == "zero3":
        pytest.skip("two ranks a node, and what deepspeed sends beside, are not counted by hand")
    ranks = ranks_of(subject)
    session = interconnect.prepare(subject)
    sent_B = ranks.link_B(session.key, 4)
    interconnect.close(session)
    events = ranks.trace(subject.step)
    due_B = sum(
        4 * event[3] * (0.5 if event[2] == "all_gather" else 1.0) for event in events if event[0] == "begin"
    )
    assert due_B <= sent_B <= 1.5 * due_B + 20_000  # heads of frames, acknowledgements, the barrier
