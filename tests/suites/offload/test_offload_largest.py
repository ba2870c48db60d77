"""The largest model in a budget: what is tried and told, and that the budget bites on real ranks."""

from __future__ import annotations

import math
from dataclasses import replace

import offload_ranks
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.instruments.distributed.rank_pool import RankFailed
from harness.records import Note, Reading
from suites.offload import largest as module
from suites.offload.largest import FINE, SHALLOW, STEPS, Attempt, attempts, first_guess, search
from suites.offload.ranks import Ranks
from suites.offload.subject import baseline, shared_techniques
from suites.training.correctness import plain_losses, text_updates

WORKLOAD = replace(offload_ranks.WORKLOAD, num_hidden_layers=256, dp_size=1, device_memory_budget_B=20e6)


def subject_of(workload=WORKLOAD):
    return baseline(workload, seed=3)


def of_at_most(fits):
    """Return what an attempt with so many layers gives."""
    return lambda num_hidden_layers: Attempt(num_hidden_layers, num_hidden_layers <= fits, "")


SEARCHES = st.integers(1, 2000).flatmap(
    lambda most: st.tuples(st.just(most), st.integers(0, 2 * most), st.integers(1, most))
)
"""The most layers that are tried, how many fit, and the first guess."""


@given(SEARCHES)
@example((256, 252, 250))  # close beneath the most
def test_it_finds_the_largest_closely_and_has_tried_both_sides(sizes):
    most, fits, guess = sizes
    tried = list(search(guess, most, of_at_most(fits)))
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


class ByRule:
    """Ranks that answer by rule: peaks that grow with layers, and `train_within_budget` as `ends` says."""

    def __init__(self, peak_B, ends=None):
        self.peak_B, self.ends, self.calls, self.closed = peak_B, ends, [], 0

    def call(self, function, subject, **arguments):
        layers = subject.workload.num_hidden_layers
        self.calls.append((function, layers, arguments))
        if function == "footprint":
            return [{"peaks_B": [1.0, self.peak_B(layers)]}, {"peaks_B": [0.5, 0.5]}]
        return self.ends(layers, arguments["budget_B"])

    def close(self):
        self.closed += 1


def test_the_first_guess_goes_by_shallow_models():
    for base_B, layer_B, guess in (
        (1e6, 0.5e6, 34),  # (0.9 * 20 - 1) / 0.5
        (30e6, 1e6, 1),
        (5e6, 0.0, 256),
    ):
        ranks = ByRule(lambda layers, base_B=base_B, layer_B=layer_B: base_B + layer_B * layers)
        assert first_guess(subject_of(), ranks) == guess
        assert [layers for _, layers, _ in ranks.calls] == list(SHALLOW)


@pytest.mark.parametrize(
    ("error", "only_with_budget", "message", "by_budget"),
    [
        (MemoryError("rank 0, within: no memory"), True, "rank 0, within: no memory", True),
        (RankFailed("rank 0 was killed\nits last words"), True, "rank 0 was killed", True),
        (RankFailed("rank 0: ValueError: three heads"), False, "rank 0: ValueError: three heads", False),
    ],
)
def test_a_try_that_ends_reports_why_and_whether_by_the_budget(error, only_with_budget, message, by_budget):
    def ends(num_hidden_layers, budget_B):
        assert budget_B in (20_000_000, None)
        if num_hidden_layers > 7 and (budget_B is not None or not only_with_budget):
            raise error

    ranks = ByRule(lambda num_hidden_layers: 1e6 * num_hidden_layers, ends)
    found = list(attempts(subject_of(), ranks))
    assert max(one.num_hidden_layers for one in found if one.trained) == 7
    assert {(one.message, one.by_budget) for one in found} == {("", True), (message, by_budget)}
    tries = [arguments for name, _, arguments in ranks.calls if name == "train_within_budget"]
    assert all(one["steps"] == STEPS for one in tries)
    assert ranks.closed == len(tries) >= len(found)  # each try has fresh processes


@pytest.fixture
def largest_of(monkeypatch):
    """Return the values and notes that the suite reports for attempts that a table gives."""

    def reported(table, by_budget=True):
        monkeypatch.setattr(module, "METHODS", {"half": None})
        monkeypatch.setattr(module, "largest", lambda *given: WORKLOAD.num_hidden_layers // 2)
        found = [Attempt(layers, trained, "no memory", by_budget) for layers, trained in table.items()]
        monkeypatch.setattr(module, "attempts", lambda *given: iter(found))
        outputs = list(module.sample_largest(module.DepthSearch(subject_of(), None)))
        values = {(one.metric, one.method): one.value for one in outputs if isinstance(one, Reading)}
        return values, [one.text for one in outputs if isinstance(one, Note)]

    return reported


def parameters_by_hand(num_hidden_layers):
    """Return parameters: query and output, key and value of half the heads, the MLP, norms, embeddings."""
    return num_hidden_layers * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 176 + 2 * 64) + 2 * 64 * 64 + 64


def test_the_most_that_trained_is_reached_unless_something_else_bounds_it(largest_of):
    values, notes = largest_of({10: True, 12: False, 11: True})
    assert values == {
        ("largest_layers", "tried"): 11,
        ("largest_parameters", "tried"): parameters_by_hand(11),
        ("budget_per_parameter", "tried"): pytest.approx(20e6 / parameters_by_hand(11)),
        ("largest_parameters", "half"): parameters_by_hand(128),
        ("largest_error", "half"): pytest.approx(parameters_by_hand(128) / parameters_by_hand(11) - 1),
    }
    assert [one.split(": ")[1] for one in notes] == ["trained", "died (no memory)", "trained"]
    for table, by_budget, layers in (
        ({128: True, 256: True}, True, 256),
        ({10: True, 12: False, 11: True}, False, 11),
    ):
        values, notes = largest_of(table, by_budget)
        assert values["largest_layers", "tried"] == layers
        assert "may be larger" in notes[-1]
        assert ("largest_error", "half") not in values
    with pytest.raises(MemoryError, match=rf"2e\+07 B .* one layer \({parameters_by_hand(1)} parameters\)"):
        largest_of({2: False, 1: False})


LARGE = replace(
    WORKLOAD, num_hidden_layers=15, hidden_size=128, intermediate_size=352, micro_batch_size=1, seq_len=8,
    device_memory_budget_B=None,
)  # fmt: skip
COUNT = LARGE.shape.parameters  # 2.8 million; 45 MB of parameters, gradients and moments, 3 MB of activations


@pytest.mark.slow
def test_a_model_whose_states_exceed_the_budget_does_not_train_and_one_within_does_on_new_ranks():
    """Parameters and gradients take 8 bytes per parameter; the moments are made in the first step.

    A budget too small for these 16 on the device is large enough for 4 and a gradient.
    """
    ranks, subject = Ranks(LARGE, exact=True), subject_of(LARGE)
    on_host = subject.with_techniques(["host_update"])
    try:
        with pytest.raises(MemoryError, match=r"rank 0, train_within_budget: .*memory"):
            ranks.call("train_within_budget", subject, budget_B=12 * COUNT, steps=STEPS)
        (losses,) = ranks.call("train_within_budget", subject, budget_B=28 * COUNT, steps=STEPS)
        ranks.close()
        (losses_on_host,) = ranks.call("train_within_budget", on_host, budget_B=12 * COUNT, steps=STEPS)
    finally:
        ranks.close()
    plain = plain_losses(subject.step, text_updates(subject.step, STEPS), shared_techniques(LARGE))
    assert losses == pytest.approx(plain, rel=1e-5)
    assert losses_on_host == pytest.approx(plain, rel=1e-5)
