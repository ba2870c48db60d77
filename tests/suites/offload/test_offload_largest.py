"""The largest model in a budget: what is tried and told, and that the budget bites on real ranks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import suites.offload.suite as offload
from harness.instruments.distributed.rank_pool import RankFailed
from harness.records import Note, Reading
from suites.offload import largest as module
from suites.offload import largest as searching
from suites.offload.largest import BY_TENSORS, FINE, SHALLOW, STEPS, Attempt, attempts, first_guess, search
from suites.offload.ranks import Ranks
from suites.offload.subject import baseline, shared_techniques
from suites.offload.workload import Workload
from suites.training.correctness import plain_losses, text_updates

WORKLOAD = Workload(
    num_hidden_layers=256,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=176,
    vocab_size=64,
    micro_batch_size=2,
    seq_len=16,
    precision="fp32",
    dp_size=1,
    learning_rate=3e-3,
    loss_steps=8,
    device_memory_budget_B=20e6,
)


def subject_of(workload=WORKLOAD):
    return baseline(workload, seed=3)


# The search, against an oracle that knows the answer.


SEARCHES = st.integers(1, 2000).flatmap(
    lambda most: st.tuples(st.just(most), st.integers(0, 2 * most), st.integers(1, most))
)
"""The most layers that are tried, how many fit, and the first guess."""


@given(SEARCHES)
@example((256, 252, 250))  # close beneath the most
def test_it_finds_the_largest_closely_and_has_tried_both_sides(sizes):
    most, fits, guess = sizes
    tried = list(
        search(
            guess, most, lambda num_hidden_layers: Attempt(num_hidden_layers, num_hidden_layers <= fits, "")
        )
    )
    good = {one.num_hidden_layers for one in tried if one.trained}
    bad = {one.num_hidden_layers for one in tried if not one.trained}
    found = max(good, default=0)
    assert tried[0].num_hidden_layers == guess
    assert all(1 <= one.num_hidden_layers <= most for one in tried)
    assert len(good | bad) == len(tried)  # nothing twice
    assert len(tried) <= 2 * math.log2(most + 1) + 2
    if found == most:
        assert fits >= most
        return
    assert found <= fits < min(bad)
    assert min(bad) - found <= max(int(found * FINE), 1)


@pytest.mark.parametrize(("fits", "tried"), [(0, [1]), (1, [1])])
def test_a_model_of_one_layer(fits, tried):
    found = list(
        search(1, 1, lambda num_hidden_layers: Attempt(num_hidden_layers, num_hidden_layers <= fits, ""))
    )
    assert [one.num_hidden_layers for one in found] == tried


def test_by_hand():
    """From 32 in strides of 2, 4, 8, then halves, to within 3 % of 41."""
    found = [
        one.num_hidden_layers
        for one in search(
            32, 256, lambda num_hidden_layers: Attempt(num_hidden_layers, num_hidden_layers <= 41, "")
        )
    ]
    assert found == [32, 34, 38, 46, 42, 40, 41]


# The first guess, and what becomes of a rank's death.


class Told:
    """Ranks that answer by rule: peaks that grow with layers, and `train_within_budget` as `ends` says."""

    def __init__(self, peak_B=None, ends=None):
        self.peak_B, self.ends = peak_B, ends
        self.calls, self.closed = [], 0

    def call(self, function, subject, **arguments):
        workload = subject.workload
        self.calls.append((function, workload.num_hidden_layers, arguments))
        if function == "footprint":
            return [{"peaks_B": [1.0, self.peak_B(workload.num_hidden_layers)]}, {"peaks_B": [0.5, 0.5]}]
        return self.ends(workload.num_hidden_layers, arguments["budget_B"])

    def close(self):
        self.closed += 1


@pytest.mark.parametrize(
    ("base_B", "layer_B", "guess"),
    [
        (1e6, 0.5e6, 34),  # (0.9 * 20 - 1) / 0.5
        (1e6, 1.6e6, 10),
        (30e6, 1e6, 1),
        (0.0, 1e3, 256),
        (5e6, 0.0, 256),
    ],
)
def test_the_first_guess_goes_by_shallow_models(base_B, layer_B, guess):
    ranks = Told(lambda num_hidden_layers: base_B + layer_B * num_hidden_layers)
    assert BY_TENSORS == 0.9
    assert first_guess(subject_of(), ranks) == guess
    assert [num_hidden_layers for _, num_hidden_layers, _ in ranks.calls] == list(SHALLOW)


def grown(num_hidden_layers):
    return 1e6 * num_hidden_layers


def test_a_try_that_runs_out_of_memory_reports_why():
    def ends(num_hidden_layers, budget_B):
        assert budget_B == 20_000_000
        if num_hidden_layers > 7:
            raise MemoryError("rank 0, within: can't allocate memory")

    ranks = Told(grown, ends)
    found = list(attempts(subject_of(), ranks))
    assert max(one.num_hidden_layers for one in found if one.trained) == 7
    assert {one.message for one in found} == {"", "rank 0, within: can't allocate memory"}
    assert ranks.closed == len(found)  # each try has fresh processes
    assert all(
        arguments["steps"] == STEPS for name, _, arguments in ranks.calls if name == "train_within_budget"
    )


def test_a_rank_that_dies_of_the_limit_alone_is_a_try_that_failed():
    def ends(num_hidden_layers, budget_B):
        if num_hidden_layers > 7 and budget_B is not None:
            raise RankFailed("rank 0 was killed by SIGSEGV in within\nits last words")

    found = list(attempts(subject_of(), Told(grown, ends)))
    assert max(one.num_hidden_layers for one in found if one.trained) == 7
    assert {one.message for one in found} == {"", "rank 0 was killed by SIGSEGV in within"}


def test_a_rank_that_dies_without_the_limit_too_is_not_bounded_by_it():
    def ends(num_hidden_layers, budget_B):
        if num_hidden_layers > 7:
            raise RankFailed("rank 0, within: ValueError: three heads")

    found = list(attempts(subject_of(), Told(grown, ends)))
    assert max(one.num_hidden_layers for one in found if one.trained) == 7
    died = [one for one in found if "three heads" in one.message]
    assert died
    assert not any(one.by_budget or one.trained for one in died)


# What is told of it.


@pytest.fixture
def largest_of(monkeypatch):
    """Return what the suite reports for attempts that a table gives."""

    def told(table, workload=WORKLOAD):
        monkeypatch.setattr(module, "METHODS", {"half": None})
        monkeypatch.setattr(module, "largest", lambda *given: workload.num_hidden_layers // 2)
        found = [
            Attempt(num_hidden_layers, trained, "no memory") for num_hidden_layers, trained in table.items()
        ]
        monkeypatch.setattr(module, "attempts", lambda *given: iter(found))
        return list(module.sample_largest(module.DepthSearch(subject_of(workload), None)))

    return told


def value(told, metric, method="tried"):
    return [
        one.value for one in told if isinstance(one, Reading) and (one.metric, one.method) == (metric, method)
    ]


def remarks(told):
    return [one.text for one in told if isinstance(one, Note)]


def parameters_by_hand(num_hidden_layers):
    """Return parameters: query and output, key and value of half the heads, the MLP, norms, embeddings."""
    return num_hidden_layers * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 176 + 2 * 64) + 2 * 64 * 64 + 64


def test_the_most_that_trained_is_reached(largest_of):
    told = largest_of({10: True, 12: False, 11: True})
    assert value(told, "largest_layers") == [11]
    assert value(told, "largest_parameters") == [parameters_by_hand(11)]
    assert value(told, "budget_per_parameter") == [pytest.approx(20e6 / parameters_by_hand(11))]
    assert value(told, "largest_parameters", "half") == [parameters_by_hand(128)]
    error = parameters_by_hand(128) / parameters_by_hand(11) - 1
    assert value(told, "largest_error", "half") == [pytest.approx(error)]
    ends = [one.split(": ")[1] for one in remarks(told)]
    assert ends == ["trained", "died (no memory)", "trained"]


def test_where_all_trained_it_may_be_larger_and_no_error_is_reported(largest_of):
    told = largest_of({128: True, 256: True})
    assert value(told, "largest_layers") == [256]
    assert "may be larger" in remarks(told)[-1]
    assert value(told, "largest_error", "half") == []


def test_where_none_trained_the_cell_is_out_of_memory(largest_of):
    with pytest.raises(
        MemoryError, match=rf"2e\+07 B per rank .* one layer \({parameters_by_hand(1)} parameters\)"
    ):
        largest_of({2: False, 1: False})


def test_the_parameters_that_a_search_trains_are_those_that_its_budget_holds():
    """By hand, in fp32: 16 B per parameter, 2 · 34 · 32 · 64 B of activations per layer, 12 · 32 · 64 B for
    the loss; 22 layers take 19.5 MB, 23 take 20.4 MB."""
    attempts_of, footprints_of = 4 * 3, 2 + 2 + 1 + 2  # settling, steady, moved, sent
    expected = attempts_of * (parameters_by_hand(1) + parameters_by_hand(22)) + footprints_of * (
        parameters_by_hand(2) + parameters_by_hand(4)
    )
    assert module.trained_parameters(subject_of()) == expected
    assert module.trained_parameters(subject_of(replace(WORKLOAD, num_hidden_layers=10_000))) == expected
    shallow = module.trained_parameters(subject_of(replace(WORKLOAD, num_hidden_layers=22)))
    assert shallow == expected


# The limit, on real ranks.


LARGE = replace(
    WORKLOAD,
    num_hidden_layers=15,
    hidden_size=128,
    intermediate_size=352,
    micro_batch_size=1,
    seq_len=8,
    device_memory_budget_B=None,
)
COUNT = LARGE.shape.parameters  # 2.8 million; 45 MB of parameters, gradients and moments, 3 MB of activations


def plain(subject):
    return plain_losses(subject.step, text_updates(subject.step, STEPS), shared_techniques(subject.workload))


@pytest.mark.slow
def test_a_model_whose_states_exceed_the_budget_does_not_train_and_one_within_does_on_new_ranks():
    """Parameters and gradients take 8 bytes per parameter; the moments are made in the first step."""
    ranks, subject = Ranks(LARGE, exact=True), subject_of(LARGE)
    try:
        with pytest.raises(MemoryError, match=r"rank 0, train_within_budget: .*memory"):
            ranks.call("train_within_budget", subject, budget_B=12 * COUNT, steps=STEPS)
        (losses,) = ranks.call("train_within_budget", subject, budget_B=28 * COUNT, steps=STEPS)
    finally:
        ranks.close()
    assert losses == pytest.approx(plain(subject), rel=1e-5)


@pytest.mark.slow
def test_what_lies_on_the_host_is_not_counted():
    """A budget too small for 16 bytes per parameter on the device is large enough for 4 and a gradient."""
    ranks, subject = Ranks(LARGE, exact=True), subject_of(LARGE).with_techniques(["host_update"])
    try:
        (losses,) = ranks.call("train_within_budget", subject, budget_B=12 * COUNT, steps=STEPS)
    finally:
        ranks.close()
    assert losses == pytest.approx(plain(subject), rel=1e-5)


@pytest.mark.slow
def test_the_largest_on_real_ranks_is_what_its_states_allow(monkeypatch):
    """16 bytes per parameter and little else: activations of 8 tokens, Python's objects, what is left."""
    monkeypatch.setattr(searching, "FINE", 0.2)  # fewer tries
    monkeypatch.setattr(searching, "BY_TENSORS", 0.75)  # what lies beside them in so small a budget
    budget_B = 20e6
    monkeypatch.setattr(module, "METHODS", {})
    workload = replace(WORKLOAD, device_memory_budget_B=budget_B, micro_batch_size=1, seq_len=8)
    session = offload.prepare(subject_of(workload))
    try:
        offload.check(session)
        told = list(offload.read_once(session))
    finally:
        offload.close(session)
    (most,) = value(told, "largest_layers")
    died = [int(text.partition(" ")[0]) for text in remarks(told) if ": died (" in text]
    assert 16 * parameters_by_hand(most) < budget_B + 2**20
    assert 16 * parameters_by_hand(min(died)) > 0.6 * budget_B
    assert min(died) - most <= max(int(0.2 * most), 1)
