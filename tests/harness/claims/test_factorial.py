"""What each factor of a full factorial is worth, compared with every order tried one by one."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
from factorial_records import FACTORS, Gain, factorial_records, independent, overlapping
from hypothesis import given
from hypothesis import strategies as st

from harness.claims.judge import Factorial, factorial_of, shapley_powers
from harness.claims.values import compare
from harness.records import Record


def of(records: list[Record]) -> Factorial:
    found = factorial_of(records, FACTORS, "all", "baseline", "time", "warm")
    assert found is not None
    return found


def mean_over_orders(gain: Gain, factor: str) -> float:
    """Return the geometric mean of what the factor adds in each order of all factors."""
    added = []
    for order in permutations(FACTORS):
        before = frozenset(order[: order.index(factor)])
        added.append(math.log(gain(before | {factor}) / gain(before)))
    return math.exp(sum(added) / len(added))


@pytest.mark.parametrize("gain", [independent, overlapping])
@pytest.mark.parametrize("factor", FACTORS)
def test_a_shapley_value_is_the_mean_over_every_order(gain: Gain, factor: str) -> None:
    assert of(factorial_records(gain)).shapley(factor).value == pytest.approx(mean_over_orders(gain, factor))


@pytest.mark.parametrize("gain", [independent, overlapping])
def test_shapley_values_multiply_to_the_whole(gain: Gain) -> None:
    found = of(factorial_records(gain))
    product = math.prod(found.shapley(one).value for one in FACTORS)
    assert product == pytest.approx(found.whole().value) == pytest.approx(gain(frozenset(FACTORS)))


def test_a_factorial_is_without_what_was_wrong_in_one_process() -> None:
    records = factorial_records(independent)
    at = next(i for i, one in enumerate(records) if one.cell.optimization == "all.b_c")
    records[at] = records[at]._replace(status="wrong_result")
    assert set(of(records).factors) in ({"a", "b"}, {"a", "c"})


def test_alone_and_added_last_are_the_ratios_of_two_variants() -> None:
    records = factorial_records(overlapping)
    found = of(records)

    def times_of(variant: str) -> list[Record]:
        return [one for one in records if one.cell.optimization == variant]

    alone = compare(times_of("baseline"), times_of("all.a"), "time", "warm")
    last = compare(times_of("all.b_c"), times_of("all.a_b_c"), "time", "warm")
    assert found.alone("a")[:3] == pytest.approx(alone[:3])
    assert found.added_last("a")[:3] == pytest.approx(last[:3])


def test_independent_gains_do_not_interact_and_overlapping_ones_do() -> None:
    found = of(factorial_records(independent))
    assert found.pair("a", "b").value == pytest.approx(1)
    assert found.whole_over_product().value == pytest.approx(1)
    found = of(factorial_records(overlapping))
    assert found.pair("a", "b").value == pytest.approx(0.7)
    assert found.pair("a", "c").value == pytest.approx(1.4)
    assert found.product_of_singles().value == pytest.approx(2 * 1.5 * 0.9)
    assert found.whole_over_product().value == pytest.approx(0.7 * 1.4)


def test_the_greedy_order_takes_what_gains_most_next() -> None:
    steps = of(factorial_records(overlapping)).greedy()
    assert [one.factor for one in steps] == ["a", "c", "b"]  # b alone gains more than c; after a, less
    assert [one.gain.value for one in steps] == pytest.approx([2.0, 0.9 * 1.4, 1.5 * 0.7])
    assert steps[-1].so_far.value == pytest.approx(overlapping(frozenset(FACTORS)))


def test_an_interval_comes_from_the_processes() -> None:
    records = factorial_records(independent, processes=2)
    slower = [
        one._replace(
            measurements=tuple(
                m._replace(samples=tuple(1.1 * x for x in m.samples)) for m in one.measurements
            )
        )
        if one.cell.repeat and one.cell.optimization == "all.a"
        else one
        for one in records
    ]
    alone, other = of(slower).alone("a"), of(slower).alone("b")
    assert alone.low < 2 / math.sqrt(1.1) < alone.high
    assert alone.value == pytest.approx(2 / math.sqrt(1.1))
    assert other.high / other.low == pytest.approx(1)


def test_factors_without_every_combination_are_left_out() -> None:
    found = of(factorial_records(independent, without=["all.a_c"]))
    assert (found.factors, found.left_out) == (("a", "b"), ("c",))
    nothing = factorial_records(independent, without=["all.a_b", "all.a_c", "all.b_c"])
    assert factorial_of(nothing, FACTORS, "all", "baseline", "time", "warm") is None


def test_unlike_machines_are_not_pooled() -> None:
    records = factorial_records(independent)
    other = [
        one._replace(host="another", environment="another")
        for one in records
        if one.cell.optimization != "baseline"
    ]
    assert len(of([*records, *other]).log_s) == 3


@given(st.integers(1, 7))
def test_the_powers_of_a_shapley_value_are_of_equal_orders(count: int) -> None:
    factors = [str(one) for one in range(count)]
    powers = shapley_powers("0", factors)
    assert sum(share for one, share in powers.items() if "0" in one) == pytest.approx(1)
    assert sum(powers.values()) == pytest.approx(0)
