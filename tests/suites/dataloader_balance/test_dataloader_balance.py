"""Balance: assignments against a plain LPT and differencing; the suite against sums and bounds by hand."""

from __future__ import annotations

import heapq
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config.run import load
from harness.records import Unavailable, WrongResult
from suites.dataloader import dataloader_balance, document_seconds
from suites.dataloader.dataloader_balance import LengthTable, Subject
from suites.dataloader.document_seconds import MODEL, TimedStep, cost_of, fitted
from suites.dataloader.workload import DataloaderBalanceWorkload
from suites.training.balance import DocumentCost, assign, cost, flop_of_document, loads, lower_bound

METHODS = ["in_order", "random", "greedy", "karmarkar_karp"]
RUN = load(["suite=dataloader_balance"])[0]

whole_costs = st.lists(st.integers(0, 1000), min_size=1, max_size=60)


def plain_lpt(costs, groups):
    """Return LPT's loads, one item at a time."""
    heap = [(0, group) for group in range(groups)]
    for one in sorted(costs, reverse=True):
        least, group = heapq.heappop(heap)
        heapq.heappush(heap, (least + one, group))
    return sorted(load for load, _ in heap)


def plain_differencing(costs, groups):
    """Return the loads of Karmarkar–Karp by its definition: dense partitions, the emptiest group subtracted.

    Of equal differences the partition that was made first goes first, and single items go last.
    """
    base = 0
    left = [(-one, float("inf"), (one,) + (0,) * (groups - 1)) for one in costs]
    while len(left) > 1:
        left.sort()
        (*_, first), (*_, second), *left = left
        sums = sorted((a + b for a, b in zip(first, reversed(second), strict=True)), reverse=True)
        base += sums[-1]
        left.append((sums[-1] - sums[0], -len(left), tuple(one - sums[-1] for one in sums)))
    return sorted(one + base for one in left[0][-1])


def sorted_loads(costs, groups, method, **options):
    return sorted(loads(costs, assign(costs, groups, method, **options), groups))


@settings(deadline=None, derandomize=True, max_examples=150)
@given(costs=whole_costs, groups=st.integers(1, 12), seed=st.integers(0, 3))
def test_every_item_is_in_one_group_and_plans_by_cost_are_as_their_definitions(costs, groups, seed):
    for method in METHODS:
        group_of = assign(costs, groups, method, seed)
        assert (group_of.shape, group_of.dtype) == ((len(costs),), np.int64)
        assert 0 <= group_of.min() <= group_of.max() < groups
        load = loads(costs, group_of, groups)
        assert load.sum() == sum(costs)
        assert load.max() >= lower_bound(costs, groups)
        assert np.array_equal(group_of, assign(costs, groups, method, seed))
        if method in METHODS[2:]:
            assert load.max() - load.min() <= max(costs)
    assert sorted_loads(costs, groups, "greedy") == plain_lpt(costs, groups)
    roomy = {"tokens": [1] * len(costs), "most_tokens": len(costs)}
    assert sorted_loads(costs, groups, "greedy", **roomy) == plain_lpt(costs, groups)


@pytest.mark.parametrize("sigma", [0.1, 3.0])
def test_greedy_is_lpt_where_many_items_are_placed_at_once(sigma):
    costs = np.rint(np.random.default_rng(1).lognormal(10, sigma, 5000))
    assert sorted_loads(costs, 65, "greedy") == plain_lpt(costs.tolist(), 65)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(costs=st.lists(st.integers(1, 10**9), min_size=1, max_size=40, unique=True), groups=st.integers(1, 6))
def test_karmarkar_karp_is_the_method_of_its_definition(costs, groups):
    assert sorted_loads(costs, groups, "karmarkar_karp") == plain_differencing(costs, groups)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(costs=whole_costs, groups=st.integers(1, 8), data=st.data())
def test_no_group_gets_more_tokens_than_it_has_room_for(costs, groups, data):
    size = len(costs)
    tokens = data.draw(st.lists(st.integers(1, 50), min_size=size, max_size=size))
    most = data.draw(st.integers(1, sum(tokens)))
    try:
        group_of = assign(costs, groups, "greedy", tokens=tokens, most_tokens=most)
    except ValueError:
        assert max(tokens) > most or sum(tokens) > groups * (most - max(tokens))
    else:
        assert np.bincount(group_of, tokens, groups).max() <= most


def test_flop_of_llama_3_8b_and_of_attention_to_all_tokens():
    """218,103,808 parameters per layer, as conf/suite/overlap_schedule.yaml counts them, and the head.

    Attention by its products: 2 of n x n x hidden per layer, 2 FLOP each, and twice that in the backward.
    """
    flop = flop_of_document(
        hidden_size=4096, num_hidden_layers=32, intermediate_size=14336, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256,
    )  # fmt: skip
    assert flop == (6 * (32 * 218_103_808 + 128256 * 4096), 6 * 32 * 4096)
    assert cost([1, 10], *flop).tolist() == [sum(flop), 10 * flop.linear + 100 * flop.quadratic]
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 128, "num_attention_heads": 4}
    full = flop_of_document(**sizes, num_key_value_heads=4, vocab_size=0, mlp_matrices=2, causal=False)
    assert full == (6 * 3 * (4 * 64 * 64 + 2 * 64 * 128), 3 * (2 * 2 * 64) * 3)


def subject(method="in_order", seed=0, cost=None, **changed):
    """Return steps of log-normal lengths for 8 groups."""
    fields = {"groups": 8, "documents_per_step": 64, "steps": 3, "context_length": 4096, "source": "here"}
    workload = DataloaderBalanceWorkload(**{**fields, **changed})
    return Subject(workload, seed, cost or workload.flop, method)


def published(method="in_order", **changed):
    """Return steps of published lengths for 16 groups; parts of long documents are kept together."""
    fields = {"lengths_from": "published", "long_documents": "kept", "context_length": 4096, "groups": 16}
    fields |= {"documents_per_step": 16 * changed.get("groups", 16)}
    return subject(method, cost=DocumentCost(1.0, 1e-4), **fields | changed)


def read(one, metric):
    return [reading.value for reading in dataloader_balance.sample(one) if reading.metric == metric]


def test_rows_are_full_and_keep_the_documents_in_order():
    workload = subject(items="rows", rows_per_group=3, context_length=100, mean_tokens=60).workload
    parts, row_of = dataloader_balance.rows(workload, 24, np.random.default_rng(5))
    assert np.bincount(row_of, parts).tolist() == [100] * 24
    drawn = dataloader_balance.draw(workload, dataloader_balance.DRAWN_AT_ONCE, np.random.default_rng(5))
    expected, row, ends = [], 0, 0
    for length in drawn.tolist():
        while length and row < 24:
            taken = min(length, 100 - ends)
            expected.append((taken, row))
            length, ends = length - taken, ends + taken
            if ends == 100:
                ends, row = 0, row + 1
    assert [*zip(parts.tolist(), row_of.tolist(), strict=True)] == expected


def test_drawn_lengths_have_the_stated_mean_and_spread_or_the_committed_quantiles():
    for sigma in (0.25, 1.0):
        drawn = dataloader_balance.draw(subject(sigma=sigma).workload, 200_000, np.random.default_rng(0))
        assert drawn.mean() == pytest.approx(1093, rel=0.02)
        assert np.log(drawn).std() == pytest.approx(sigma, rel=0.02)
    rows = [json.loads(line) for line in dataloader_balance.FILE.read_text().splitlines()]
    for row in rows:
        table = dataloader_balance.published_lengths()[row["documents_of"]]
        probability, tokens = np.array(row["quantiles"]).T
        assert (probability[0], probability[-1]) == (0, 1)
        assert (np.diff(probability) > 0).all()
        assert (np.diff(tokens) >= 0).all()
        assert table.at(probability).tolist() == tokens.tolist()
        drawn = table.at(np.random.default_rng(0).random(100_000))
        assert drawn.mean() == pytest.approx(row["mean"], rel=0.1)
    halves = LengthTable(np.array([0.0, 0.5, 1.0]), np.array([1, 100, 10_000]))
    assert halves.at(np.array([0.25, 0.75])).tolist() == [10, 1000]  # the logarithm is linear


@settings(deadline=None, derandomize=True, max_examples=60)
@given(linear=st.floats(1e-9, 1e-3), attention=st.floats(0.001, 100))
def test_a_fit_finds_the_cost_that_steps_were_made_from(linear, attention):
    """`attention`: its time over all other in a document of 8,192 tokens. One step of each length is slow."""
    made = DocumentCost(linear, linear * attention / 8192)
    steps_made = [
        TimedStep(n, 16384, 16384 * (made.linear + made.quadratic * n) * factor)
        for n in (256, 1024, 8192)
        for factor in (1, 3, 1)
    ]
    found = fitted(steps_made)
    assert found.linear == pytest.approx(made.linear, rel=1e-6)
    assert found.quadratic == pytest.approx(made.quadratic, rel=1e-6, abs=0)
    with pytest.raises(WrongResult, match="time the steps again"):  # of a busy host
        fitted([TimedStep(256, 4096, 2.0), TimedStep(4096, 4096, 1.0)])


def test_committed_steps_are_of_the_model_that_the_workloads_have():
    first, timed = document_seconds.recorded()
    assert first["model"] == MODEL
    assert {one.document_tokens for one in timed} == {256 << power for power in range(6)}
    cost = fitted(timed)
    for length in {one.document_tokens for one in timed}:
        seconds = np.median([one.seconds / one.tokens for one in timed if one.document_tokens == length])
        assert cost.linear + cost.quadratic * length == pytest.approx(seconds, rel=0.15)
    workload = DataloaderBalanceWorkload(**RUN.workloads["textbooks_16k_1024"])
    assert cost_of(workload) == cost
    with pytest.raises(Unavailable, match="hidden_size=512"):
        cost_of(replace(workload, hidden_size=1024))


def test_a_gain_reaches_the_number_of_groups_where_one_document_is_everything():
    """One document of 4 contexts and three of one token: kept together, one group has all the work."""
    listed = {"lengths_from": "list", "lengths": [4 * 4096, 1, 1, 1], "groups": 4, "documents_per_step": 4}
    for long_documents, gain in (("kept", 4), ("spread", 1)):
        one = published("greedy", **listed, steps=1, long_documents=long_documents)
        assert read(one, "speedup") == [pytest.approx(gain, rel=1e-3)]
    same = published("greedy", lengths_from="list", lengths=[4096], documents_per_step=16 * 6)
    assert read(same, "speedup") == pytest.approx([1.0] * 3, rel=1e-12)


@pytest.mark.parametrize("method", METHODS[:2])
def test_parts_of_a_long_document_stay_in_one_group_where_they_are_dealt_together(method):
    kept = published(method, documents_of="textbooks")
    dataloader_balance.check(kept)
    items = dataloader_balance.items_of(kept, 0)
    group_of = dataloader_balance.planned(kept, items)
    assert len(items.parts) > kept.workload.documents_per_step
    for document in np.unique(items.dealt[items.parts == 4096]):
        assert len({*group_of[items.dealt == document].tolist()}) == 1
    each = np.bincount(group_of[np.unique(items.dealt, return_index=True)[1]])
    assert each.tolist() == [16] * 16


@pytest.mark.parametrize("lengths", [[], [1, 0], [1.5], ["a"]])
def test_lists_of_other_than_lengths_are_refused(lengths):
    with pytest.raises(Unavailable, match=r"^lengths: expected a list of whole numbers of at least 1"):
        dataloader_balance.build({"lengths_from": "list", "lengths": lengths}, 0)


def test_the_check_finds_a_wrong_group_a_wrong_cost_and_a_plan_that_is_not_by_cost(monkeypatch):
    spoiled = {
        "costs": lambda tokens, linear, _: cost(tokens, linear, 0.0),
        "outside": lambda costs, groups, *_, **__: np.full(len(costs), groups),
        "one group": lambda costs, *_, **__: np.zeros(len(costs), np.int64),
    }
    for method, name, by, said in (
        ("in_order", "cost", "costs", "its documents have"),
        ("in_order", "assign", "outside", "not each is in one of 8 groups"),
        ("greedy", "assign", "one group", "greedy gives it at most"),
        ("karmarkar_karp", "assign", "one group", "karmarkar_karp gives it at most"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(dataloader_balance, name, spoiled[by])
            with pytest.raises(WrongResult, match=said):
                dataloader_balance.check(subject(method))
