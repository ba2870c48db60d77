"""What each factor of a full factorial is worth, compared with every order tried one by one."""

import math
from itertools import permutations

import pytest
from factorial_records import FACTORS, factorial_records, independent, overlapping

from harness.claims.judge import factorial_of


def of(records):
    found = factorial_of(records, FACTORS, "all", "baseline", "time", "warm")
    assert found is not None
    return found


def mean_over_orders(gain, factor):
    """Return the geometric mean of what the factor adds in each order of all factors."""
    added = []
    for order in permutations(FACTORS):
        before = frozenset(order[: order.index(factor)])
        added.append(math.log(gain(before | {factor}) / gain(before)))
    return math.exp(sum(added) / len(added))


@pytest.mark.parametrize("gain", [independent, overlapping])
def test_a_shapley_value_is_the_mean_over_every_order_and_all_multiply_to_the_whole(gain):
    found = of(factorial_records(gain))
    values = {factor: found.shapley(factor).value for factor in FACTORS}
    assert values == pytest.approx({factor: mean_over_orders(gain, factor) for factor in FACTORS})
    whole = pytest.approx(gain(frozenset(FACTORS)))
    assert math.prod(values.values()) == whole
    assert found.whole().value == whole


def test_a_factorial_is_without_what_was_wrong_in_one_process():
    records = factorial_records(independent)
    at = next(i for i, one in enumerate(records) if one.cell.optimization == "all.b_c")
    records[at] = records[at]._replace(status="wrong_result")
    assert set(of(records).factors) in ({"a", "b"}, {"a", "c"})


def test_independent_gains_do_not_interact_and_overlapping_ones_do():
    found = of(factorial_records(independent))
    assert found.pair("a", "b").value == pytest.approx(1)
    assert found.whole_over_product().value == pytest.approx(1)
    found = of(factorial_records(overlapping))
    assert (found.alone("a").value, found.added_last("a").value) == pytest.approx((2, 2 * 0.7 * 1.4))
    assert found.pair("a", "b").value == pytest.approx(0.7)
    assert found.pair("a", "c").value == pytest.approx(1.4)
    assert found.product_of_singles().value == pytest.approx(2 * 1.5 * 0.9)
    assert found.whole_over_product().value == pytest.approx(0.7 * 1.4)


def test_factors_without_every_combination_are_left_out():
    found = of(factorial_records(independent, without=["all.a_c"]))
    assert (found.factors, found.left_out) == (("a", "b"), ("c",))
    nothing = factorial_records(independent, without=["all.a_b", "all.a_c", "all.b_c"])
    assert factorial_of(nothing, FACTORS, "all", "baseline", "time", "warm") is None
