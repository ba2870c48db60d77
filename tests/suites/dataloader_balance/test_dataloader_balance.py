"""Balance: assignments against brute force, a plain LPT and closed bounds; the suite against sums by hand."""

from __future__ import annotations

import heapq
import json
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config.run import load
from harness.config.validation import ConfigError
from harness.records import Origin, Unavailable, WrongResult
from suites.dataloader import dataloader_balance
from suites.dataloader.dataloader_balance import Subject
from suites.dataloader.optimizations import greedy, karmarkar_karp, random_order
from suites.dataloader.workload import DataloaderBalanceWorkload
from suites.training import balance
from suites.training.balance import assign, cost, flop_of_document, loads, lower_bound

METHODS = ["in_order", "random", "greedy", "karmarkar_karp"]
RUN = load(["suite=dataloader_balance"])[0]

whole_costs = st.lists(st.integers(0, 1000), min_size=1, max_size=60)


def least_slowest(costs, groups):
    """Return the slowest group of the best assignment, by trying all of them."""
    return min(
        max(sum(one for one, to in zip(costs, groups_of, strict=True) if to == at) for at in range(groups))
        for groups_of in product(range(groups), repeat=len(costs))
    )


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


def slowest(costs, groups, method, **options):
    return float(loads(costs, assign(costs, groups, method, **options), groups).max())


@settings(deadline=None, derandomize=True, max_examples=60)
@given(costs=st.lists(st.integers(1, 30), min_size=1, max_size=7), groups=st.integers(1, 3))
def test_no_method_is_better_than_all_assignments_and_lpt_is_within_grahams_bound(costs, groups):
    best = least_slowest(costs, groups)
    assert lower_bound(costs, groups) <= best
    assert all(slowest(costs, groups, method) >= best for method in METHODS)
    graham = Fraction(4, 3) - Fraction(1, 3 * groups)
    assert Fraction(int(slowest(costs, groups, "greedy"))) <= best * graham


def test_karmarkar_karp_leaves_the_difference_of_the_literature():
    """{8, 7, 6, 5, 4} in two: Karmarkar–Karp leaves 2 and LPT 4, where 0 is possible (15 and 15)."""
    costs = [8, 7, 6, 5, 4]
    assert sorted(loads(costs, assign(costs, 2, "karmarkar_karp"), 2)) == [14, 16]
    assert sorted(loads(costs, assign(costs, 2, "greedy"), 2)) == [13, 17]
    assert least_slowest(costs, 2) == 15


def test_lpt_reaches_its_worst_case():
    """Graham's example: 2 m + 1 items, for which LPT is 4/3 - 1/(3 m) above the best."""
    costs = [5, 5, 4, 4, 3, 3, 3]
    assert slowest(costs, 3, "greedy") == 11
    assert least_slowest(costs, 3) == 9


@settings(deadline=None, derandomize=True, max_examples=150)
@given(costs=whole_costs, groups=st.integers(1, 12), method=st.sampled_from(METHODS), seed=st.integers(0, 3))
def test_every_item_is_in_one_group_and_nothing_is_lost(costs, groups, method, seed):
    group_of = assign(costs, groups, method, seed)
    assert group_of.shape == (len(costs),)
    assert group_of.dtype == np.int64
    assert group_of.min() >= 0
    assert group_of.max() < groups
    assert loads(costs, group_of, groups).sum() == sum(costs)
    assert np.array_equal(group_of, assign(costs, groups, method, seed))
    assert slowest(costs, groups, method, seed=seed) >= lower_bound(costs, groups)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(costs=whole_costs, groups=st.integers(1, 12))
def test_greedy_is_lpt(costs, groups):
    assert sorted(loads(costs, assign(costs, groups, "greedy"), groups)) == plain_lpt(costs, groups)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(costs=whole_costs, groups=st.integers(1, 12), method=st.sampled_from(METHODS[2:]))
def test_plans_by_cost_leave_at_most_the_largest_item_between_any_two_groups(costs, groups, method):
    load = loads(costs, assign(costs, groups, method), groups)
    assert load.max() - load.min() <= max(costs)


def test_karmarkar_karp_is_not_always_better_than_greedy():
    """Of 30,000 random small cases greedy was better in 4, worse in 1,892; this is the smallest of the 4."""
    costs = [11, 10, 9, 8, 6, 4, 3, 2]
    assert slowest(costs, 3, "greedy") == 18
    assert slowest(costs, 3, "karmarkar_karp") == 19


@pytest.mark.parametrize("groups", [65, 200, 1000])
@pytest.mark.parametrize("sigma", [0.1, 1.5, 3.0])
def test_greedy_is_lpt_where_many_items_are_placed_at_once(groups, sigma):
    costs = np.rint(np.random.default_rng(1).lognormal(10, sigma, 5000))
    assert sorted(loads(costs, assign(costs, groups, "greedy"), groups)) == plain_lpt(costs.tolist(), groups)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(costs=st.lists(st.integers(1, 10**9), min_size=1, max_size=40, unique=True), groups=st.integers(1, 6))
def test_karmarkar_karp_is_the_method_of_its_definition(costs, groups):
    ours = sorted(loads(costs, assign(costs, groups, "karmarkar_karp"), groups))
    assert ours == plain_differencing(costs, groups)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(costs=whole_costs, groups=st.integers(1, 8), data=st.data())
def test_no_group_gets_more_tokens_than_it_has_room_for(costs, groups, data):
    size = len(costs)
    tokens = data.draw(st.lists(st.integers(1, 50), min_size=size, max_size=size))
    most = data.draw(st.integers(1, sum(tokens)))
    refused = ""
    try:
        group_of = assign(costs, groups, "greedy", tokens=tokens, most_tokens=most)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert f"groups of {most}" in refused
        assert max(tokens) > most or sum(tokens) > groups * (most - max(tokens))
    else:
        assert np.bincount(group_of, tokens, groups).max() <= most


def test_with_room_for_all_greedy_is_the_same():
    costs = [9, 7, 5, 4, 3, 3, 1]
    roomy = assign(costs, 3, "greedy", tokens=[1] * 7, most_tokens=7)
    assert sorted(loads(costs, roomy, 3)) == plain_lpt(costs, 3)


def test_equal_room_makes_groups_equally_full():
    costs = np.random.default_rng(0).lognormal(0, 1, 60)
    group_of = assign(costs, 12, "greedy", tokens=[8] * 60, most_tokens=40)
    assert np.bincount(group_of).tolist() == [5] * 12


@pytest.mark.parametrize(
    ("costs", "groups", "method", "options", "said"),
    [
        ([1.0, float("nan")], 2, "greedy", {}, "cost of item 1 is nan"),
        ([1.0, -2.0], 2, "greedy", {}, "cost of item 1 is -2.0"),
        ([[1.0]], 2, "greedy", {}, "shape (1, 1)"),
        ([1.0], 0, "greedy", {}, "groups=0"),
        ([1.0], 2, "best", {}, "method 'best': expected one of in_order, random, greedy, karmarkar_karp"),
        ([1.0], 2, "karmarkar_karp", {"tokens": [1], "most_tokens": 1}, "only 'greedy' respects it"),
        ([1.0], 2, "greedy", {"tokens": [1]}, "expected both or neither"),
        ([1.0], 2, "greedy", {"tokens": [1, 2], "most_tokens": 9}, "tokens of shape (2,)"),
        ([1.0], 2, "greedy", {"tokens": [9], "most_tokens": 8}, "9 tokens finds no room in 2 groups of 8"),
    ],
)
def test_bad_arguments_are_refused(costs, groups, method, options, said):
    with pytest.raises(ValueError) as error:
        assign(costs, groups, method, **options)
    assert said in str(error.value)


@pytest.mark.parametrize("method", METHODS)
def test_no_items_and_fewer_items_than_groups(method):
    assert assign([], 3, method).tolist() == []
    assert len(set(assign([3.0, 2.0, 1.0], 8, method).tolist())) == 3


def test_flop_of_llama_3_8b():
    """218,103,808 parameters per layer, as conf/suite/overlap_schedule.yaml counts them, and the head."""
    flop = flop_of_document(
        hidden_size=4096, num_hidden_layers=32, intermediate_size=14336, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256,
    )  # fmt: skip
    assert flop.linear == 6 * (32 * 218_103_808 + 128256 * 4096)
    assert flop.quadratic == 6 * 32 * 4096
    assert cost([1, 10], *flop).tolist() == [
        flop.linear + flop.quadratic,
        10 * flop.linear + 100 * flop.quadratic,
    ]


def test_attention_to_all_tokens_costs_twice_as_much():
    """By its products: 2 of n x n x hidden per layer, 2 FLOP each, and twice that in the backward."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 128, "num_attention_heads": 4}
    flop = flop_of_document(**sizes, num_key_value_heads=4, vocab_size=0, mlp_matrices=2, causal=False)
    assert flop.quadratic == 3 * (2 * 2 * 64) * 3
    assert flop.linear == 6 * 3 * (4 * 64 * 64 + 2 * 64 * 128)


def subject(method="in_order", seed=0, **changed):
    fields = {"groups": 8, "documents_per_step": 64, "steps": 3, "context_length": 4096, "source": "here"}
    given = DataloaderBalanceWorkload(**{**fields, **changed})
    return Subject(given, seed, given.flop, method)


def read(one, metric):
    return [reading.value for reading in dataloader_balance.sample(one) if reading.metric == metric]


@pytest.mark.parametrize("items", ["documents", "rows"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_passes_its_check(items, method):
    fields = {"items": items} if items == "documents" else {"items": items, "rows_per_group": 3}
    one = subject(method, **fields)
    if method == "karmarkar_karp" and items == "rows":
        with pytest.raises(Unavailable, match="expected items=documents"):
            dataloader_balance.check(one)
        return
    dataloader_balance.check(one)
    assert min(read(one, "slowest_over_bound")) >= 1 - 1e-9


def test_variants_differ_by_their_method_alone():
    base = subject()
    applied = [applied(base) for applied in (random_order, greedy, karmarkar_karp)]
    assert [one.method for one in applied] == ["random", "greedy", "karmarkar_karp"]
    assert {replace(one, method="in_order").seed for one in applied} == {base.seed}


def test_documents_are_cut_to_the_context():
    assert dataloader_balance.cut(np.array([3, 10, 5, 12]), 5).tolist() == [3, 5, 5, 5, 5, 5, 2]


def test_rows_are_full_and_keep_the_documents_in_order():
    workload = subject(items="rows", rows_per_group=3, context_length=100, mean_tokens=60).workload
    parts, row_of = dataloader_balance.rows(workload, 24, np.random.default_rng(5))
    assert np.bincount(row_of, parts).tolist() == [100] * 24
    ends, lengths = (
        0,
        dataloader_balance.draw(
            workload, dataloader_balance.DRAWN_AT_ONCE, np.random.default_rng(5)
        ).tolist(),
    )
    expected, row = [], 0
    for length in lengths:
        while length and row < 24:
            taken = min(length, 100 - ends)
            expected.append((taken, row))
            length, ends = length - taken, ends + taken
            if ends == 100:
                ends, row = 0, row + 1
    assert [*zip(parts.tolist(), row_of.tolist(), strict=True)] == expected


@pytest.mark.parametrize("sigma", [0.25, 1.0])
def test_drawn_lengths_have_the_stated_mean_and_spread(sigma):
    drawn = dataloader_balance.draw(subject(sigma=sigma).workload, 200_000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(1093, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(sigma, rel=0.02)


def test_all_methods_have_the_same_documents_and_seeds_have_others():
    same = [dataloader_balance.items_of(subject(method), 1).tokens.tolist() for method in METHODS]
    assert all(one == same[0] for one in same)
    assert dataloader_balance.items_of(subject(seed=1), 1).tokens.tolist() != same[0]
    assert dataloader_balance.items_of(subject(), 2).tokens.tolist() != same[0]


def test_overlords_example_by_hand():
    workload = RUN.workloads["toy"]
    for method in METHODS[2:]:
        given = DataloaderBalanceWorkload(**workload)
        (ratio,) = read(Subject(given, 0, given.flop, method), "slowest_over_fastest")
        assert ratio == pytest.approx(5800 / 5000)
    readings = [*dataloader_balance.sample(dataloader_balance.build(workload, 0))]
    simple = [one for one in readings if one.metric == "slowest_over_fastest"]
    assert [one.value for one in simple] == [pytest.approx(1.16)]
    assert simple[0].origin == Origin.CALCULATED
    assert least_slowest([30**2, 50**2, 70**2, 50**2], 2) == 5800


def test_the_speed_up_of_a_step_is_over_the_loaders_order():
    base, own = subject(), subject("greedy")
    ratios = np.array(read(base, "step_cost")) / read(own, "step_cost")
    assert read(own, "speedup") == pytest.approx(ratios)
    assert read(base, "speedup") == [1.0] * 3


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("lengths.json", "[1, 2", "cannot be read"),
        ("lengths.json", "[]", "expected a list of whole numbers"),
        ("lengths.json", "[1, 0]", "expected a list of whole numbers"),
        ("lengths.json", "[1.5]", "expected a list of whole numbers"),
        ("lengths.json", "[[1], [2, 3]]", "expected a list of whole numbers"),
        ("lengths.npy", "text", "cannot be read"),
        ("lengths.csv", "1", "expected a .npy or .json file"),
        ("missing.json", None, "cannot be read"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(Unavailable) as error:
        dataloader_balance.build({"lengths_from": "file", "lengths_file": str(path)}, 0)
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_lengths_that_would_need_unpickling_are_refused(tmp_path):
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(Unavailable, match="cannot be read"):
        dataloader_balance.build({"lengths_from": "file", "lengths_file": str(path)}, 0)


def test_real_lengths_are_drawn_from_their_file(tmp_path):
    (tmp_path / "lengths.json").write_text(json.dumps([7, 11]))
    np.save(tmp_path / "lengths.npy", np.array([7, 11]))
    for name in ("lengths.json", "lengths.npy"):
        one = subject(lengths_from="file", lengths_file=str(tmp_path / name))
        assert {*dataloader_balance.items_of(one, 0).tokens.tolist()} == {7, 11}
        dataloader_balance.check(one)


def test_the_check_finds_a_group_that_does_not_exist(monkeypatch):
    outside = lambda costs, groups, *_, **__: np.full(len(costs), groups)  # noqa: E731
    monkeypatch.setattr(dataloader_balance, "assign", outside)
    with pytest.raises(WrongResult, match="not each is in one of 8 groups"):
        dataloader_balance.check(subject())


def test_the_check_finds_costs_that_are_not_those_of_the_lengths(monkeypatch):
    monkeypatch.setattr(
        dataloader_balance, "cost", lambda lengths, linear, quadratic: balance.cost(lengths, linear, 0.0)
    )
    with pytest.raises(WrongResult, match="its documents have"):
        dataloader_balance.check(subject())


def test_the_check_finds_a_plan_that_is_not_by_cost(monkeypatch):
    monkeypatch.setattr(dataloader_balance, "assign", lambda costs, *_, **__: np.zeros(len(costs), np.int64))
    for method in ("greedy", "karmarkar_karp"):
        with pytest.raises(WrongResult, match=f"{method} gives it at most"):
            dataloader_balance.check(subject(method))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("groups=0", "groups"),
        ("items=packs", "items"),
        ("mlp_matrices=4", "mlp_matrices"),
        ("num_attention_heads=3", "hidden_size"),
        ("lengths_file=x.npy", "lengths_file"),
    ],
)
def test_bad_workloads_are_refused(override, said):
    with pytest.raises(ConfigError, match=said):
        load(["suite=dataloader_balance", f"suite.workloads.documents_1.{override}"])
